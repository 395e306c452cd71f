"""Flags of Megatron-LM. Names: megatron-core 0.19, megatron/training/arguments.py."""

from __future__ import annotations

from pathlib import Path

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, exported
from autotune.wire.recipe import CLIP_NORM

_OPTIMIZERS = {"adamw": "adam", "muon": "muon"}


def export(best: Best, folder: Path) -> Exported:
    """`megatron.sh`, to be sourced: it sets the array AUTOTUNE_ARGS."""
    config = best.config
    says = {*BATCHES, "depth", "width", "seq_len", "dtype"}
    flags = [
        f"--num-layers {config.depth}",
        f"--seq-length {config.seq_len}",
        f"--micro-batch-size {config.micro_batch}",
        f"--global-batch-size {config.global_batch_samples}",
        f"--clip-grad {CLIP_NORM}",
    ]
    if config.dtype != "fp32":
        flags.append(f"--{config.dtype}")
    if config.width is not None:
        flags.append(f"--hidden-size {config.width}")
    if config.optimizer in _OPTIMIZERS:
        says.add("optimizer")
        flags.append(f"--optimizer {_OPTIMIZERS[config.optimizer]}")
    if config.zero_stage == 1 and config.offload == "none":
        # It shares the optimizer's state, as stage 1 does.
        says |= {"zero_stage", "offload"}
        flags.append("--use-distributed-optimizer")
    if config.checkpointing in ("none", "full"):
        says.add("checkpointing")
    if config.checkpointing == "full":
        flags += [
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        ]
    lines = "".join(f"  {flag}\n" for flag in flags)
    text = f"# shellcheck shell=bash disable=SC2034\nAUTOTUNE_ARGS=(\n{lines})\n"
    comment = "Megatron-LM also needs --num-attention-heads and --max-position-embeddings."
    return exported(best, says, {"megatron.sh": text}, comments=[comment])
