"""Packages and hardware that a value of an axis needs, checked before any device is touched."""

from __future__ import annotations

import os
import shutil

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.installed import missing
from autotune.space.axes import AXES
from autotune.space.models import FAMILIES
from autotune.space.options import Options
from autotune.space.workload import Workload


def lacks(axis: str, value: str, device_kind: str, dtype: str) -> str:
    """Why this machine cannot run that value of an axis, and a remedy; empty if it can."""
    cuda = device_kind == "cuda"
    match axis, value:
        case "attention", "flash_attention_2":
            if not cuda:
                return "needs a GPU"
            return "needs --dtype bf16 or fp16" if dtype == "fp32" else missing("flash_attn")
        case "attention", "flex_attention" if not cuda:
            return "has no backward pass on the CPU"
        case "checkpointing", "host" if not cuda:
            return "the CPU is the host; use full"
        case "compile", "on" if cuda:
            return missing("triton") or _compiler("C", os.environ.get("CC", ""), "gcc", "clang")
        case "compile", "on":
            return _compiler("C++", os.environ.get("CXX", ""), "g++", "clang++")
        case "optimizer", "adamw8bit":
            return missing("torchao") or lacks("compile", "on", device_kind, dtype)
        case "float8", _ if value != "off":
            if dtype != "bf16":
                return f"only beside products in bf16, and they are in {dtype}; use --dtype bf16"
            return missing("torchao")
        case ("param_dtype", "fp32" | "bf16") | ("base", "bf16") if dtype != "bf16":
            return f"only for products in bf16, and they are in {dtype}; use --dtype bf16"
        case "allocator", _ if "backend:" in value:
            return "torch takes it before torch is imported; set it where autotune is started"
        case "allocator", _ if value != "default" and not cuda:
            return "torch's allocator of CUDA memory is not used on the CPU"
    return ""


def _compiler(language: str, *names: str) -> str:
    if any(name and shutil.which(name) for name in names):
        return ""
    return f"needs a {language} compiler: install {names[1]}"


def check_energy(options: Options, device: Device) -> None:
    """Check that energy can be measured, if it is the objective. Raises UsageError if it cannot be
    measured."""
    if options.search.objective != "tokens_per_joule":
        return
    if options.devices.parallel != 1 and device.kind == "cpu":
        raise UsageError(
            f"--parallel {options.devices.parallel}: the counters of the processors include all"
            " groups; leave it out, or use --objective tokens_per_s"
        )
    if lack := device.energy().lack:
        raise UsageError(f"--objective tokens_per_joule: {lack}; use --objective tokens_per_s")


def check_machine(
    options: Options, workload: Workload, device: Device, *, here: bool = True
) -> None:
    """Check that the model, and the machine if it runs `here`, support `options`. Raises
    UsageError if they do not support a value."""
    check_energy(options, device)
    family = FAMILIES[options.model.family]
    for name, axis in AXES.items():
        for value in options.space.axes.get(name, ()) if axis.words else ():
            why = family.lacks(workload.recipe, name, value)
            if name == "base" and value != axis.plain and not workload.recipe.get("lora"):
                why = "only weights that --lora freezes can be of another type; add --lora r=16"
            if name == "float8" and value != axis.plain and not all(i.fp8 for i in device.infos):
                why = f"{device.infos[0].name} is older than compute capability 8.9"
            if not why and here:
                why = lacks(name, value, device.kind, workload.dtype)
            if why:
                raise UsageError(f"{axis.flag} {value}: {why}")
