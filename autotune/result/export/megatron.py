"""Flags of Megatron-LM. Names: megatron-core 0.19, megatron/training/arguments.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, flags, remark, unexpressed
from autotune.wire.recipe import CLIP_NORM

_OPTIMIZERS = {"adamw": "adam", "muon": "muon"}


def export(best: Best, folder: Path) -> Exported:
    """`megatron.sh`, to be sourced: it sets the array AUTOTUNE_ARGS."""
    config = best.config
    says = {*BATCHES, "depth", "width", "seq_len", "dtype"}
    given: dict[str, Any] = {
        "--num-layers": config.depth,
        "--seq-length": config.seq_len,
        "--micro-batch-size": config.micro_batch,
        "--global-batch-size": config.global_batch_samples,
        "--clip-grad": CLIP_NORM,
        "--bf16": config.dtype == "bf16",
        "--fp16": config.dtype == "fp16",
    }
    if config.width is not None:
        given["--hidden-size"] = config.width
    if config.optimizer in _OPTIMIZERS:
        says.add("optimizer")
        given["--optimizer"] = _OPTIMIZERS[config.optimizer]
    if config.zero_stage == 1 and config.offload == "none":
        # It shares the optimizer's state, as stage 1 does.
        says |= {"zero_stage", "offload"}
        given["--use-distributed-optimizer"] = True
    if config.checkpointing in ("none", "full"):
        says.add("checkpointing")
    if config.checkpointing == "full":
        given |= {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": 1,
        }
    missing = unexpressed(best, says)
    lines = flags(given).replace(" \\\n", "\n")
    first = "# shellcheck shell=bash disable=SC2034\n"
    first += "# Megatron-LM also wants --num-attention-heads and --max-position-embeddings.\n"
    text = f"{first}{remark(best, missing)}AUTOTUNE_ARGS=(\n  {lines}\n)\n"
    return Exported(files={"megatron.sh": text}, unexpressed=missing)
