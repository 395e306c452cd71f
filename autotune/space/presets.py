"""Commands of known trainers, with their placeholders: what `--script` may name by a word.

Flags: torchtitan 0.3 (config/manager.py, config/configs.py, trainer.py), Megatron-LM with
megatron-core 0.19 (megatron/training/arguments.py). What the user writes after the word goes
before a flag of the same name here.
"""

from __future__ import annotations

import re
import shlex

from autotune.errors import UsageError

_TORCHRUN = "torchrun --standalone --nproc-per-node {world_size}"
_ENDLESS = "1000000"
"""Steps: autotune ends a launch when it has measured it."""
_TORCHTITAN = {
    "--training.local_batch_size": "{micro_batch}",
    "--training.global_batch_size": "{global_batch}",
    "--training.seq_len": "{seq_len}",
    "--training.steps": _ENDLESS,
    "--parallelism.data_parallel_replicate_degree": "{dp_replicate}",
    "--parallelism.data_parallel_shard_degree": "{dp_shard}",
    "--parallelism.tensor_parallel_degree": "{tp}",
    "--parallelism.pipeline_parallel_degree": "{pp}",
    "--parallelism.context_parallel_degree": "{cp}",
    "--parallelism.expert_parallel_degree": "{ep}",
    "--dump_folder": "{out}",
}
_MEGATRON = {
    "--micro-batch-size": "{micro_batch}",
    "--global-batch-size": "{global_batch}",
    "--seq-length": "{seq_len}",
    "--max-position-embeddings": "{seq_len}",
    "--train-iters": _ENDLESS,
    "--tensor-model-parallel-size": "{tp}",
    "--pipeline-model-parallel-size": "{pp}",
    "--context-parallel-size": "{cp}",
    "--expert-model-parallel-size": "{ep}",
}
_MODULES = ("deepseek_v3", "flux", "gpt_oss", "llama3", "muse_glimmer", "qwen3")
"""Modules of torchtitan that the names of their configs begin with."""


def expanded(text: str, flag: str) -> str:
    """The command that `text` stands for: "torchtitan:llama3_8b", "torchtitan:my.module:config" or
    "megatron", with further words of the user's after it; any other text as it is.

    Raises:
        UsageError: a config of torchtitan whose module is not known.
    """
    first, _, rest = text.strip().partition(" ")
    if first == "megatron":
        script, _, others = rest.strip().partition(" ")
        if not script.endswith(".py"):
            script, others = "pretrain_gpt.py", rest
        return _command(script, _MEGATRON, others)
    if first.startswith("torchtitan:"):
        module, _, config = first.removeprefix("torchtitan:").rpartition(":")
        module = module or next((m for m in _MODULES if config.startswith(f"{m}_")), "")
        if not module or not config:
            raise UsageError(
                f"{flag} {first}: no module of torchtitan is known for it; write"
                f" torchtitan:MODULE:{config or 'CONFIG'}, e.g. torchtitan:llama3:llama3_8b"
            )
        start = f"-m torchtitan.train --module {module} --config {config}"
        return _command(start, _TORCHTITAN, rest)
    return text


def _command(start: str, flags: dict[str, str], rest: str) -> str:
    try:
        given = {re.sub("[-_]", "-", word.partition("=")[0]) for word in shlex.split(rest)}
    except ValueError:  # the command is refused for it
        given = set()
    ours = [f"{flag} {value}" for flag, value in flags.items()
            if re.sub("[-_]", "-", flag) not in given]  # fmt: skip
    return " ".join([_TORCHRUN, start, *ours, *([rest.strip()] if rest.strip() else [])])
