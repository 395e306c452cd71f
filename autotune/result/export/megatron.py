"""Flags of Megatron-LM. Names: megatron-core 0.19, megatron/training/arguments.py."""

from __future__ import annotations

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, exported, fallback, otherwise
from autotune.space.axes import DEGREES
from autotune.wire.recipe import CLIP_NORM

_OPTIMIZERS = {"adamw": "adam", "muon": "muon"}
_DEGREES = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context"}


def export(best: Best) -> Exported:
    """`megatron.sh`, to be sourced: it sets AUTOTUNE_ARGS. A script's has known settings."""
    config = best.config
    says = {*BATCHES, "depth", "width", "seq_len", "dtype"}
    instead = fallback(config.checkpointing) if best.knows("checkpointing") else ()
    flags = [  # with the field of a result
        ("depth", f"--num-layers {config.depth}"),
        ("seq_len", f"--seq-length {config.seq_len}"),
        ("micro_batch", f"--micro-batch-size {config.micro_batch}"),
        ("micro_batch", f"--global-batch-size {config.global_batch_samples}"),
        ("", f"--clip-grad {CLIP_NORM}"),
    ]
    if config.splits is not None:
        flags += [
            ("world_size", f"--{_DEGREES[name]}-parallel-size {size}")
            for name, size in config.splits.items()
        ]
        if best.known is not None:
            flags.append(("ep", f"--expert-model-parallel-size {config.ep}"))
        says |= set(DEGREES)
    if config.dtype != "fp32":
        flags.append(("dtype", f"--{config.dtype}"))
    if config.width is not None:
        flags.append(("", f"--hidden-size {config.width}"))
    if config.optimizer in _OPTIMIZERS:
        says.add("optimizer")
        flags.append(("optimizer", f"--optimizer {_OPTIMIZERS[config.optimizer]}"))
    if config.zero_stage == 1 and config.offload == "none":
        # It shards the optimizer's state, as stage 1 does.
        says |= {"zero_stage", "offload"}
        flags.append(("zero_stage", "--use-distributed-optimizer"))
    if config.checkpointing in ("none", "full") or instead:
        says.add("checkpointing")
    if config.checkpointing == "full" or instead:
        flags += [
            ("checkpointing", "--recompute-granularity full"),
            ("checkpointing", "--recompute-method uniform"),
            ("checkpointing", "--recompute-num-layers 1"),
        ]
    lines = "".join(f"  {flag}\n" for field, flag in flags if best.knows(field))
    text = f"# shellcheck shell=bash disable=SC2034\nAUTOTUNE_ARGS=(\n{lines})\n"
    comment = "Megatron-LM also needs --num-attention-heads and --max-position-embeddings."
    return exported(
        best, says, {"megatron.sh": text}, instead=instead, comments=[comment, *otherwise(best)]
    )
