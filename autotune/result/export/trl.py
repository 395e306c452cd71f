"""SFTConfig of TRL. Names: TRL 1.x, trainer/sft_config.py."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Best
from autotune.result.export.format import Exported, exported
from autotune.result.export.hf import TORCH, arguments, quantized

_PYTHON = '''\
"""SFTConfig of a result: trl_config.sft_config("out")."""

import json
import os
from dataclasses import fields
from pathlib import Path

# As it was measured: blocks alone are compiled, for the shape that they have.
os.environ.setdefault("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "true")
os.environ.setdefault("ACCELERATE_DYNAMO_USE_DYNAMIC", "false")

from trl import SFTConfig


def sft_config(output_dir, **own):
    """`own` come first."""
    found = json.loads(Path(__file__).with_name("trl.json").read_text()) | own
    known = {field.name for field in fields(SFTConfig)}
    if "activation_checkpointing" not in known:  # of transformers before 5.23
        for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
            if name in found:
                found[name.replace("activation", "gradient", 1)] = found.pop(name)
    return SFTConfig(output_dir, **found)
'''
_ONE_ROW = "a packed micro-batch is one row, whose mask needs more memory without flash attention"
_LORA = '''

def peft_config():
    """For SFTTrainer(peft_config=...)."""
    from peft import LoraConfig

    return LoraConfig(**json.loads(Path(__file__).with_name("trl-lora.json").read_text()))
'''


def export(best: Best) -> Exported:
    """`trl.json` and `trl_config.py`."""
    config = best.config
    found, says, instead = arguments(best)
    says |= {"seq_len", "attention", "lora", "base"}
    of_model: dict[str, Any] = {}
    if config.attention != "auto":
        of_model["attn_implementation"] = config.attention
    if config.engine != "deepspeed":
        says.add("param_dtype")
        of_model["dtype"] = TORCH[config.stored_in(config.dtype)]
    if base := quantized(config):
        of_model["quantization_config"] = base
    found |= {"max_length": config.seq_len, "model_init_kwargs": of_model}
    if config.loss == "chunked":  # an option of TRL before 1.16; later ones have no other loss
        says.add("loss")
        found["loss_type"] = "chunked_nll"
    if config.pack == "on":
        says.add("pack")
        found["packing"] = True
        if config.attention != "flash_attention_2" and config.micro_batch > 1:
            instead += (_ONE_ROW,)
    files: dict[str, Any] = {"trl.json": found, "trl_config.py": _PYTHON}
    if (lora := best.lora) is not None:
        adapters = {
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "target_modules": list(lora.targets) or "all-linear",
        }
        files |= {"trl-lora.json": adapters, "trl_config.py": _PYTHON + _LORA}
    return exported(best, says, files, instead=instead)
