"""Axolotl's YAML. Keys: axolotl 0.19, utils/schemas/ (config.py, training.py, fsdp.py)."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import (
    BATCHES,
    BESIDE,
    LIGER,
    OF_DEEPSPEED,
    Exported,
    exported,
    fallback,
)
from autotune.result.export.hf import enabled, with_own_rate
from autotune.space.axes import AXES
from autotune.wire.recipe import CLIP_NORM

_DEEPSPEED = "axolotl-deepspeed.json"
_FP8: dict[str, dict[str, Any]] = {
    recipe: {"fp8": True, "fp8_config": {"recipe": recipe}}
    for recipe in AXES["float8"].words if recipe != "off"
}  # fmt: skip
_OPTIM = {"adamw": "adamw_torch_fused", "muon": "muon", "adamw8bit": "adamw_torch_8bit"}
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
"""axolotl turns these on by default. None of them was measured."""
_BASES: dict[str, dict[str, Any]] = {
    "nf4": {"adapter": "qlora", "load_in_4bit": True},
    "int8": {"load_in_8bit": True},
}
"""axolotl's 4 bits are nf4 with double quantization (its loaders/model.py)."""
_CHECKPOINTING: dict[str, dict[str, Any]] = {
    "none": {"gradient_checkpointing": False},
    "full": {"gradient_checkpointing": True},
    "host": {"gradient_checkpointing": True, "activation_offloading": "hidden_states"},
}


def export(best: Best) -> Exported:
    """`axolotl.yaml`, to be merged into one that names model and data."""
    config = best.config
    says = {*BATCHES, "seq_len", "dtype", "optimizer", "attention", "lora", "base", "float8"}
    files: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] = {
        "micro_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.grad_accum,
        "sequence_len": config.seq_len,
        "bf16": config.dtype == "bf16",
        "fp16": config.dtype == "fp16",
        **_FP8.get(config.float8, {}),
        "optimizer": _OPTIM[config.optimizer],
        "max_grad_norm": CLIP_NORM,
        "torch_compile": config.compile == "on",
    }
    if (lora := best.lora) is not None:
        found |= {"adapter": "lora", "lora_r": lora.rank, "lora_alpha": lora.alpha}
        found["lora_dropout"] = lora.dropout
        every = {"lora_target_linear": True}
        found |= {"lora_target_modules": list(lora.targets)} if lora.targets else every
        found |= dict.fromkeys(_KERNELS, False) | _BASES.get(config.base, {})
    if config.pack == "on":
        says.add("pack")
        in_rows = config.attention != "flash_attention_2"  # flash attention takes one long row
        found |= {"sample_packing": True, "multipack_real_batches": in_rows}
    if config.attention != "auto":
        found["attn_implementation"] = config.attention
    instead, comments = fallback(config.checkpointing), []
    if (kept := "full" if instead else config.checkpointing) in _CHECKPOINTING:
        says.add("checkpointing")
        found |= _CHECKPOINTING[kept]
        if config.checkpointing != "none":
            found["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if config.loss == "chunked" and best.device_kind != "cpu":
        # Its own chunked_cross_entropy holds all logits.
        says.add("loss")
        found |= {
            "plugins": ["axolotl.integrations.liger.LigerPlugin"],
            "liger_fused_linear_cross_entropy": True,
            "liger_rope": False,  # on for some models by default
        }
        instead += (LIGER,)
    if config.engine == "deepspeed":
        says |= {*OF_DEEPSPEED, "param_dtype"}
        settings = with_own_rate(best.exports["deepspeed"])
        found |= {"deepspeed": _DEEPSPEED, **enabled(settings)}
        if config.optimizer == "muon":  # refused beside DeepSpeed, which has its own
            del found["optimizer"]
        files[_DEEPSPEED] = settings
        comments.append(BESIDE.format(_DEEPSPEED))
    elif config.engine == "fsdp":
        says.add("zero_stage")
        found |= {
            "fsdp_version": 2,
            "fsdp_config": {
                "reshard_after_forward": config.zero_stage == 3,
                "offload_params": False,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "state_dict_type": "SHARDED_STATE_DICT",
            },
        }
    return exported(
        best, says, {**files, "axolotl.yaml": found}, instead=instead, comments=comments
    )
