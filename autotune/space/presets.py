"""Commands of known trainers, with their placeholders, which `--script` may name by a word.

Flags: torchtitan 0.3 (config/manager.py, config/configs.py, trainer.py), megatron-core 0.19
(megatron/training/arguments.py). The user's flags replace those of the same name.
"""

from __future__ import annotations

import re
import shlex

from autotune.errors import UsageError

_TORCHRUN = "torchrun --standalone --nproc-per-node {world_size}"
_ENDLESS = "1000000"
"""Steps: autotune ends a launch after the measurement."""
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
_MODULES = {
    "deepseek_v3": "deepseek_v3", "flux": "flux", "gpt_oss": "gpt_oss", "kimi": "kimi_k2_7",
    "llama3_torchft": "torchft.llama3", "llama3": "llama3", "moonlight": "kimi_k2_7",
    "muse_glimmer": "muse_glimmer", "qwen35": "qwen3_5", "qwen3": "qwen3",
    "sft_debugmodel": "llama3", "sft_qwen3": "qwen3",
    "transformers_modeling_backend": "transformers_modeling_backend",
}  # fmt: skip
"""Modules of torchtitan, by what the names of their configs begin with."""
_GRAPHED = "graph_trainer"
"""Also a folder of modules, whose configs begin with it."""


def expanded(text: str, flag: str) -> str:
    """The command that `text` stands for, with the user's further words; other texts as they are.

    Known are "torchtitan:llama3_8b", "torchtitan:my.module:config" and "megatron". Raises
    UsageError if the module of a torchtitan config is unknown.
    """
    first, _, rest = text.strip().partition(" ")
    if first == "megatron":
        script, _, others = rest.strip().partition(" ")
        if not script.endswith(".py"):
            script, others = "pretrain_gpt.py", rest
        # Before Blackwell, tensor parallelism needs it. Its FSDP refuses it.
        alone = "" if "-fsdp" in others else "CUDA_DEVICE_MAX_CONNECTIONS=1 "
        return alone + _command(script, _MEGATRON, others)
    if first == "torchtitan" or first.startswith("torchtitan:"):
        module, _, config = first.removeprefix("torchtitan").lstrip(":").rpartition(":")
        module = module or _module(config)
        if not module or not config:
            raise UsageError(
                f"{flag} {first}: no module of torchtitan is known for it; write"
                f" torchtitan:MODULE:{config or 'CONFIG'}, e.g. torchtitan:llama3:llama3_8b"
            )
        start = f"-m torchtitan.train --module {module} --config {config}"
        return _command(start, _TORCHTITAN, rest)
    return text


def _module(config: str) -> str:
    """That of torchtitan which has `config`; empty where none is known."""
    of_graphs = config.startswith(f"{_GRAPHED}_")
    name = config.removeprefix(f"{_GRAPHED}_")
    found = next((m for begins, m in _MODULES.items() if f"{name}_".startswith(f"{begins}_")), "")
    return f"{_GRAPHED}.{found}" if found and of_graphs else found


def _command(start: str, flags: dict[str, str], rest: str) -> str:
    try:
        given = {re.sub("[-_]", "-", word.partition("=")[0]) for word in shlex.split(rest)}
    except ValueError:  # the command is refused later
        given = set()
    ours = [f"{flag} {value}" for flag, value in flags.items()
            if re.sub("[-_]", "-", flag) not in given]  # fmt: skip
    return " ".join([_TORCHRUN, start, *ours, *([rest.strip()] if rest.strip() else [])])
