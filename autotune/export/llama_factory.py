"""LLaMA-Factory's YAML. Keys: LLaMA-Factory 0.9.4, hparams/ (model_args.py, data_args.py), and
TrainingArguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from autotune.export.format import BATCHES, Exported, remark, unexpressed
from autotune.export.hf import with_own_rate
from autotune.result.best import Best
from autotune.wire.recipe import CLIP_NORM

_DEEPSPEED = "llama-factory-deepspeed.json"
_OPTIM = {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_torch_8bit"}
_ATTENTION = {"auto": "auto", "sdpa": "sdpa", "eager": "disabled", "flash_attention_2": "fa2"}


def export(best: Best, folder: Path) -> Exported:
    """`llama-factory.yaml`, to be merged into one that names model and data."""
    config = best.config
    says = {*BATCHES, "seq_len", "dtype", "param_dtype"}
    files: dict[str, str] = {}
    found: dict[str, Any] = {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.grad_accum,
        "cutoff_len": config.seq_len,
        "bf16": config.dtype == "bf16" and config.param_dtype != "bf16",
        "pure_bf16": config.param_dtype == "bf16",
        "fp16": config.dtype == "fp16",
        "max_grad_norm": CLIP_NORM,
        "torch_compile": config.compile == "on",
    }
    if config.optimizer == "muon":
        says.add("optimizer")
        found["use_muon"] = True
    elif config.optimizer in _OPTIM:
        says.add("optimizer")
        found["optim"] = _OPTIM[config.optimizer]
    if config.attention in _ATTENTION:
        says.add("attention")
        found["flash_attn"] = _ATTENTION[config.attention]
    if config.checkpointing in ("none", "full"):
        says.add("checkpointing")
        found["disable_gradient_checkpointing"] = config.checkpointing == "none"
        found["use_reentrant_gc"] = False
    if config.engine == "deepspeed":
        says |= {"zero_stage", "offload", "optimizer"}
        found["deepspeed"] = str(folder / _DEEPSPEED)
        files[_DEEPSPEED] = json.dumps(with_own_rate(best.exports["deepspeed"]), indent=2) + "\n"
    missing = unexpressed(best, says)
    files["llama-factory.yaml"] = remark(best, missing) + yaml.safe_dump(found, sort_keys=False)
    return Exported(files=files, unexpressed=missing)
