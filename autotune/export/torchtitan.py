"""torchtitan's Python config. Names: torchtitan of late 2026, config/ (token keys since #4121)."""

from __future__ import annotations

from pathlib import Path

from autotune.export.format import BATCHES, Exported, remark, unexpressed
from autotune.result.best import Best
from autotune.wire.recipe import CLIP_NORM

_PYTHON = '''\
"""A result for torchtitan: call `apply` on the config that your function returns."""


def apply(config):
    """`config` with what was measured."""
{lines}
    return config
'''


def export(best: Best, folder: Path) -> Exported:
    """`torchtitan_config.py`."""
    config = best.config
    says = {*BATCHES, "seq_len", "world_size", "compile"}
    says |= set() if config.dtype == "fp16" else {"dtype"}
    sharded = config.engine == "fsdp"
    settings = {
        "training.max_context_length": config.seq_len,
        "training.num_tokens_per_microbatch_per_dp_rank": config.micro_batch * config.seq_len,
        "training.num_tokens_per_train_step": config.global_batch_tokens,
        "training.max_norm": CLIP_NORM,
        "training.mixed_precision_param": {"bf16": "bfloat16"}.get(config.dtype, "float32"),
        "parallelism.data_parallel_replicate_degree": 1 if sharded else config.world_size,
        "parallelism.data_parallel_shard_degree": config.world_size if sharded else 1,
        "compile.enable": config.compile == "on",
    }
    if sharded:
        says.add("zero_stage")
        after = "always" if config.zero_stage == 3 else "never"
        settings["parallelism.fsdp_reshard_after_forward"] = after
    lines = [f"    config.{name} = {value!r}" for name, value in settings.items()]
    kinds = {"full": "FullAC", "selective": "SelectiveAC"}
    if config.checkpointing == "none":
        says.add("checkpointing")
        lines.append("    config.activation_checkpoint = None")
    elif config.checkpointing in kinds:
        says.add("checkpointing")
        kind = kinds[config.checkpointing]
        lines.insert(0, f"    from torchtitan.distributed.activation_checkpoint import {kind}\n")
        lines.append(f"    config.activation_checkpoint = {kind}.Config()")
    missing = unexpressed(best, says)
    text = remark(best, missing) + _PYTHON.format(lines="\n".join(lines))
    return Exported(files={"torchtitan_config.py": text}, unexpressed=missing)
