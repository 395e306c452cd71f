"""Words that stand for a trainer's command."""

from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.space.options import Options
from autotune.space.presets import expanded


def test_a_config_of_torchtitan_stands_for_its_command() -> None:
    text = expanded("torchtitan:llama3_8b --training.seq-len=4096 --x y", "--script")
    assert text.startswith(
        "torchrun --standalone --nproc-per-node {world_size} -m torchtitan.train --module llama3"
        " --config llama3_8b --training.local_batch_size {micro_batch} "
    )
    assert text.endswith(" --dump_folder {out} --training.seq-len=4096 --x y")
    assert "{seq_len}" not in text  # the user's goes first
    assert "--parallelism.tensor_parallel_degree {tp} " in text
    own = expanded("torchtitan:my.module:small", "--script")
    assert "--module my.module --config small " in own


def test_megatron_stands_for_its_pretraining() -> None:
    text = expanded("megatron --num-layers 4 --train-iters 9", "--script")
    assert " {world_size} pretrain_gpt.py --micro-batch-size {micro_batch} " in text
    assert text.endswith("--num-layers 4 --train-iters 9")
    assert text.count("--train-iters") == 1
    assert " {world_size} a/pretrain_mamba.py --micro" in expanded(
        "megatron a/pretrain_mamba.py --b 1", "--script"
    )


def test_a_manifest_has_the_command_and_no_word() -> None:
    options = Options.from_texts({"script": "megatron --num-layers 4"})
    assert options.script.template == expanded("megatron --num-layers 4", "--script")
    assert Options.from_json(options.to_json()) == options


def test_a_config_whose_module_is_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="write torchtitan:MODULE:mine,"):
        expanded("torchtitan:mine", "--script")
