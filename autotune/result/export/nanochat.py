"""Flags of nanochat's base_train. Names: nanochat of late 2026, scripts/base_train.py."""

from __future__ import annotations

from pathlib import Path

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, flags, remark, unexpressed
from autotune.result.export.nodes import checked, torchrun


def export(best: Best, folder: Path) -> Exported:
    """`nanochat.sh`, which starts a pre-training run with its own arguments after these."""
    config = best.config
    says = {*BATCHES, "depth", "seq_len", "world_size", "nodes"}
    says |= {"optimizer"} if config.optimizer == "muon" else set()
    given = {
        f"--depth={config.depth}": None,
        f"--max-seq-len={config.seq_len}": None,
        f"--device-batch-size={config.micro_batch}": None,
        f"--total-batch-size={config.global_batch_tokens}": None,
    }
    missing = unexpressed(best, says)
    if config.compile == "off":
        missing = (*missing, "compile off")  # it always compiles
    started = f"torchrun --standalone --nproc_per_node={config.world_size}"
    if config.nodes > 1:
        started = torchrun(config)
    text = (
        "#!/usr/bin/env bash\n"
        f"{remark(best, missing)}"
        "set -euo pipefail\n"
        f"{checked(config) if config.nodes > 1 else ''}"
        f"exec {started}"
        " -m scripts.base_train -- \\\n"
        f'  {flags(given)} "$@"\n'
    )
    return Exported(files={"nanochat.sh": text}, unexpressed=missing)
