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


def test_megatron_has_the_connections_that_it_asks_for() -> None:
    for words, alone in (("--bf16", True), ("--use-megatron-fsdp", False)):
        text = expanded(f"megatron {words}", "--script")
        assert text.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun") is alone


def test_a_manifest_has_the_command_and_no_word() -> None:
    options = Options.from_texts({"script": "megatron --num-layers 4"})
    assert options.script.template == expanded("megatron --num-layers 4", "--script")
    assert Options.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("config", "module"),
    [
        ("qwen35_9b", "qwen3_5"), ("qwen3_14b", "qwen3"), ("kimi_k2_5", "kimi_k2_7"),
        ("sft_qwen3_8b_math", "qwen3"), ("sft_debugmodel", "llama3"),
        ("llama3_torchft_debugmodel", "torchft.llama3"),
        ("graph_trainer_deepseek_v3_16b", "graph_trainer.deepseek_v3"),
    ],
)  # fmt: skip
def test_the_module_of_a_config_of_torchtitan_is_known(config: str, module: str) -> None:
    text = expanded(f"torchtitan:{config}", "--script")
    assert f"--module {module} --config {config} " in text


@pytest.mark.parametrize(
    ("text", "config"),
    [("torchtitan:mine", "mine"), ("torchtitan:qwen3next_1b", "qwen3next_1b"),
     ("torchtitan", "CONFIG"), ("torchtitan:", "CONFIG"), ("torchtitan:llama3:", "CONFIG")],
)  # fmt: skip
def test_a_config_whose_module_is_unknown_is_refused(text: str, config: str) -> None:
    with pytest.raises(UsageError, match=f"write torchtitan:MODULE:{config},"):
        expanded(text, "--script")
