"""Flags of nanochat's base_train. Names: nanochat of late 2026, scripts/base_train.py."""

from __future__ import annotations

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, exported
from autotune.result.export.launch import checked, torchrun


def export(best: Best) -> Exported:
    """`nanochat.sh`, which starts a pre-training run and appends its own arguments."""
    config = best.config
    says = {*BATCHES, "depth", "seq_len", "world_size", "nodes"}
    says |= {"optimizer"} if config.optimizer == "muon" else set()
    text = f"""\
#!/usr/bin/env bash
set -euo pipefail
{checked(config)}exec {torchrun(config)} -m scripts.base_train -- \\
  --depth={config.depth} \\
  --max-seq-len={config.seq_len} \\
  --device-batch-size={config.micro_batch} \\
  --total-batch-size={config.global_batch_tokens} "$@"
"""
    instead = ["compile on, and not off"] if config.compile == "off" else []
    return exported(best, {*says, "compile"}, {"nanochat.sh": text}, instead=instead)
