"""LLaMA-Factory's YAML. Keys: LLaMA-Factory 0.9.5, hparams/ (model_args.py, data_args.py,
finetuning_args.py), and TrainingArguments."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import (
    BESIDE,
    LIGER_WHOLE,
    OF_DEEPSPEED,
    Exported,
    exported,
    fallback,
)
from autotune.result.export.hf import enabled, shared_arguments, with_own_rate

_DEEPSPEED = "llama-factory-deepspeed.json"
_BASES: dict[str, dict[str, Any]] = {
    "nf4": {"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True},
    "int8": {"quantization_bit": 8},
}
_ATTENTION = {"auto": "auto", "sdpa": "sdpa", "eager": "disabled", "flash_attention_2": "fa2"}


def export(best: Best) -> Exported:
    """`llama-factory.yaml`, to be merged into one that names model and data."""
    config = best.config
    found, says = shared_arguments(config)
    says.remove("compile")  # it compiles the whole model, not its blocks
    says |= {"seq_len", "param_dtype", "lora", "base"}
    files: dict[str, dict[str, Any]] = {}
    pure = config.stored_in(config.dtype) == "bf16"
    found |= {
        "cutoff_len": config.seq_len,
        "bf16": config.dtype == "bf16" and not pure,
        "pure_bf16": pure,
        "finetuning_type": "full",  # the default is adapters
    }
    if (lora := best.lora) is not None:
        found |= {
            "finetuning_type": "lora",
            "lora_rank": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "lora_target": ",".join(lora.targets) or "all",
        }
    if config.quantized:
        found |= {"quantization_method": "bnb", **_BASES[config.base]}
    if config.optimizer == "muon" and config.engine != "deepspeed":  # it has its own
        says.add("optimizer")
        found["use_muon"] = True
    if config.attention in _ATTENTION:
        says.add("attention")
        found["flash_attn"] = _ATTENTION[config.attention]
    if config.pack == "on":
        says.add("pack")
        found["neat_packing"] = True  # its packing alone lets samples attend to others
    instead, comments = fallback(config.checkpointing), []
    if config.checkpointing in ("none", "full") or instead:
        says.add("checkpointing")
        found["disable_gradient_checkpointing"] = config.checkpointing == "none"
        found["use_reentrant_gc"] = False
    if config.loss == "chunked" and best.device_kind != "cpu":
        says.add("loss")
        found["enable_liger_kernel"] = True
        instead += LIGER_WHOLE
    if config.engine == "deepspeed":
        says |= {*OF_DEEPSPEED, "optimizer"}
        settings = with_own_rate(best.exports["deepspeed"])
        # pure_bf16 sets all dtypes, and is refused beside stage 3.
        if config.param_dtype == "fp32" and config.zero_stage == 3:
            says.discard("param_dtype")  # weights would keep their saved dtype
        found |= {"deepspeed": _DEEPSPEED, **enabled(settings), "pure_bf16": False}
        files[_DEEPSPEED] = settings
        comments.append(BESIDE.format(_DEEPSPEED))
    files["llama-factory.yaml"] = found
    return exported(best, says, files, instead=instead, comments=comments)
