"""TrainingArguments of transformers. Names: transformers 5.23 and 4.57, training_args.py."""

from __future__ import annotations

from collections.abc import Collection
from importlib import metadata
from typing import Any

from autotune.result.best import Best, Config
from autotune.result.export.format import (
    BATCHES,
    LIGER,
    OF_DEEPSPEED,
    Exported,
    every_nth,
    exported,
    fallback,
    unexpressed,
)
from autotune.wire.recipe import CLIP_NORM

TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_FACTS = {
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "grad_accum",
    "bf16": "dtype",
    "fp16": "dtype",
    "torch_compile": "compile",
    "optim": "optimizer",
    "deepspeed": "zero_stage",
    "fsdp": "zero_stage",
    "fsdp_config": "zero_stage",
    **{f"{name}_checkpointing{more}": "checkpointing"
       for name in ("activation", "gradient") for more in ("", "_kwargs")},
}  # fmt: skip
"""The fact that each argument expresses; other arguments are for probes alone."""
_OPTIM = {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_torch_8bit"}
_LIGER = dict.fromkeys(
    ("rope", "rms_norm", "layer_norm", "swiglu", "geglu", "relu_squared", "cross_entropy"), False
) | {"fused_linear_cross_entropy": True}
"""Only the loss among its kernels. It ignores kernels that a model does not use. Source:
liger-kernel 0.8, transformers/monkey_patch.py, and integrations/liger.py of transformers."""

_QUANTIZATION = "hf-quantization.json"
_BASE = '''

def quantization_config():
    """For from_pretrained(quantization_config=...)."""
    from transformers import BitsAndBytesConfig

    file = Path(__file__).with_name("hf-quantization.json")
    return BitsAndBytesConfig(**json.loads(file.read_text()))
'''
_PYTHON = '''\
"""TrainingArguments of a result: python -c "import hf; hf.training_arguments('out')"."""

import json
import os
from dataclasses import fields
from pathlib import Path

# As probes do it: blocks alone are compiled, for the shape that they have.
os.environ.setdefault("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "true")
os.environ.setdefault("ACCELERATE_DYNAMO_USE_DYNAMIC", "false")

from transformers import TrainingArguments

_NEW = any(field.name == "activation_checkpointing" for field in fields(TrainingArguments))
_FILE = Path(__file__).with_name("hf.json" if _NEW else "hf-4.json")


def training_arguments(output_dir, **own):
    """`own` come first: the learning rate, the data, what is saved and when."""
    return TrainingArguments(output_dir, **json.loads(_FILE.read_text()) | own)
'''


def arguments(
    best: Best, *, older: bool = False, known: Collection[str] | None = None
) -> tuple[dict[str, Any], set[str], tuple[str, ...]]:
    """TrainingArguments, the facts in them, and substitutes for facts that they cannot express.

    Names are of transformers 5.23, or `older`, of 4.57. A script's are the `known` settings.
    """
    config = best.config
    instead: tuple[str, ...] = ()
    found, says = shared_arguments(config)
    found["use_cpu"] = best.device_kind == "cpu"
    if config.engine == "deepspeed":
        says |= {*OF_DEEPSPEED, "param_dtype", "optimizer"}
        found["deepspeed"] = dict(with_own_rate(best.exports["deepspeed"]))
        found |= enabled(found["deepspeed"])
    elif config.engine == "fsdp":
        says.add("zero_stage")
        found["fsdp"] = "full_shard auto_wrap" if older else True
        found["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": config.zero_stage == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        }
    checkpointing, said = _checkpointing(config.checkpointing, older)
    if said:
        says.add("checkpointing")
    elif kept := fallback(config.checkpointing):
        says.add("checkpointing")
        instead += kept
    if config.engine == "fsdp" and config.checkpointing == "full":
        found["fsdp_config"]["activation_checkpointing"] = True
        checkpointing = {next(iter(checkpointing)): False}
    found |= checkpointing
    if known is not None:
        found = {name: value for name, value in found.items() if _FACTS.get(name) in known}
        if "deepspeed" in found:  # Trainer fills in the script's own config
            found["deepspeed"] |= {"gradient_clipping": "auto"}
        instead = instead if "checkpointing" in known else ()
    return found, says, instead


def with_liger(best: Best, says: set[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments that never hold all logits, and a note on them. Empty without liger-kernel."""
    if best.config.loss != "chunked" or best.device_kind == "cpu" or best.known is not None:
        return {}, ()
    says.add("loss")
    return {"use_liger_kernel": True, "liger_kernel_config": _LIGER}, (LIGER,)


def quantized(config: Config) -> dict[str, Any]:
    """BitsAndBytesConfig of frozen weights; empty where they have 16 bits or more."""
    if config.base == "int8":
        return {"load_in_8bit": True}
    if config.base != "nf4":
        return {}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": TORCH[config.dtype],
    }


def shared_arguments(config: Config) -> tuple[dict[str, Any], set[str]]:
    """The arguments that LLaMA-Factory takes, too, and the facts in them."""
    says = {*BATCHES, "dtype", "compile"}
    found: dict[str, Any] = {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.grad_accum,
        "max_grad_norm": CLIP_NORM,
        "bf16": config.dtype == "bf16",
        "fp16": config.dtype == "fp16",
        "torch_compile": config.compile == "on",
    }
    if config.optimizer in _OPTIM:
        says.add("optimizer")
        found["optim"] = _OPTIM[config.optimizer]
    return found, says


def export(best: Best) -> Exported:
    """`hf.json`, `hf-4.json` for transformers before 5.23, and `hf.py`, which chooses."""
    new, says, instead = arguments(best, known=best.known)
    old, older_says, olders = arguments(best, older=True, known=best.known)
    loss, by_liger = with_liger(best, says)
    missing = unexpressed(best, {*says, "loss"})
    older = [each for each in unexpressed(best, {*older_says, "loss"}) if each not in missing]
    of_older = [
        *(f"Before transformers 5.23: {each}" for each in olders if each not in instead),
        *(f"Before transformers 5.23 it fits only with {each}" for each in older),
    ]
    files: dict[str, Any] = {"hf.json": new | loss, "hf-4.json": old | loss, "hf.py": _PYTHON}
    if base := quantized(best.config):
        says.add("base")
        files |= {_QUANTIZATION: base, "hf.py": _PYTHON + _BASE}
    return exported(best, says, files, instead=(*instead, *by_liger, *of_older))


def is_older() -> bool:
    """Whether the installed transformers has the older names; False without transformers."""
    try:
        major, minor = metadata.version("transformers").split(".")[:2]
    except metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) < (5, 23)


def _checkpointing(kind: str, older: bool) -> tuple[dict[str, Any], bool]:
    """The arguments for checkpointing, and whether they fully express it."""
    name = "gradient_checkpointing" if older else "activation_checkpointing"
    if kind == "none":
        return {name: False}, True
    more: dict[str, Any] = {}
    if (nth := every_nth(kind)) is not None:
        more["every_n_layers"] = nth
    elif kind == "host":
        more["offload"] = True
    said = kind == "full" or (bool(more) and not older)
    kept = {} if older else more
    return {name: True, f"{name}_kwargs": {"use_reentrant": False} | kept}, said


def with_own_rate(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's `config` with "auto" as rate: a Trainer refuses another rate than its own."""
    if "optimizer" not in config:
        return config
    optimizer, own = config["optimizer"], ("betas", "eps", "muon_lr", "adam_lr")
    rates = {name: value for name, value in optimizer["params"].items() if name not in own}
    rates |= {"lr": "auto", "weight_decay": "auto"}
    off: dict[str, Any] = {}
    if "torch_autocast" in config:
        off = {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    return config | {"optimizer": optimizer | {"params": rates}} | off


def enabled(config: dict[str, Any]) -> dict[str, bool]:
    """A Trainer's `bf16` and `fp16`, which have to match DeepSpeed's `config`."""
    return {name: config[name]["enabled"] for name in ("bf16", "fp16")}
