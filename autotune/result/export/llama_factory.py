"""LLaMA-Factory's YAML. Keys: LLaMA-Factory 0.9.5, hparams/ (model_args.py, data_args.py,
finetuning_args.py), and TrainingArguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from autotune.result.best import Best
from autotune.result.export.format import BATCHES, Exported, remark, unexpressed
from autotune.result.export.hf import enabled, with_own_rate
from autotune.wire.recipe import CLIP_NORM

_DEEPSPEED = "llama-factory-deepspeed.json"
_OPTIM = {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_torch_8bit"}
_ATTENTION = {"auto": "auto", "sdpa": "sdpa", "eager": "disabled", "flash_attention_2": "fa2"}


def export(best: Best, folder: Path) -> Exported:
    """`llama-factory.yaml`, to be merged into one that names model and data."""
    config = best.config
    says = {*BATCHES, "seq_len", "dtype", "param_dtype", "lora"}
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
        "finetuning_type": "full",  # adapters, where nothing is said
    }
    if (lora := best.lora) is not None:
        found |= {
            "finetuning_type": "lora",
            "lora_rank": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_target": ",".join(lora.targets) or "all",
        }
    if config.optimizer == "muon" and config.engine != "deepspeed":  # it has its own
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
        settings = with_own_rate(best.exports["deepspeed"])
        # It says all of dtypes, and stage 3 is refused beside pure_bf16.
        if config.param_dtype == "fp32" and config.zero_stage == 3:
            says.discard("param_dtype")  # weights would be of the type that they were saved in
        found |= {"deepspeed": str(folder / _DEEPSPEED), **enabled(settings), "pure_bf16": False}
        files[_DEEPSPEED] = json.dumps(settings, indent=2) + "\n"
    missing = unexpressed(best, says)
    files["llama-factory.yaml"] = remark(best, missing) + yaml.safe_dump(found, sort_keys=False)
    return Exported(files=files, unexpressed=missing)
