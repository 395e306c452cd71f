"""What a machine lacks for a value of an axis, told before any device is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.installed import missing
from autotune.space.axes import AXES
from autotune.space.models import FAMILIES
from autotune.space.options import Options
from autotune.space.workload import Workload


@dataclass(frozen=True)
class AxisValue:
    """A value of an axis, and where it would be used."""

    value: str
    device_kind: str
    dtype: str


def _attention(asked: AxisValue) -> str:
    if asked.value == "flash_attention_2":
        if asked.device_kind != "cuda":
            return "needs a GPU"
        if asked.dtype == "fp32":
            return "needs --dtype bf16 or fp16"
        return missing("flash_attn")
    if asked.value == "flex_attention" and asked.device_kind != "cuda":
        return "has no backward pass on the CPU"
    return ""


def _checkpointing(asked: AxisValue) -> str:
    if asked.value != "host" or asked.device_kind == "cuda":
        return ""
    return "the CPU is the host; use full"


def _compile(asked: AxisValue) -> str:
    if asked.value == "off":
        return ""
    if asked.device_kind == "cuda":
        return missing("triton") or _compiler("C", os.environ.get("CC", ""), "gcc", "clang")
    return _compiler("C++", os.environ.get("CXX", ""), "g++", "clang++")


def _compiler(language: str, *names: str) -> str:
    if any(name and shutil.which(name) for name in names):
        return ""
    return f"needs a {language} compiler: install {names[1]}"


def _optimizer(asked: AxisValue) -> str:
    if asked.value != "adamw8bit":
        return ""
    return missing("torchao") or _compile(AxisValue("on", asked.device_kind, asked.dtype))


def _param_dtype(asked: AxisValue) -> str:
    if asked.value == "auto" or asked.dtype == "bf16":
        return ""
    return f"only for products in bf16, and they are in {asked.dtype}; use --dtype bf16"


def _allocator(asked: AxisValue) -> str:
    if "backend:" in asked.value:
        return "the backend is chosen before torch is imported; set it where autotune is started"
    if asked.value == "default" or asked.device_kind == "cuda":
        return ""
    return "torch's allocator of CUDA memory is not used on the CPU"


LACKS: dict[str, Callable[[AxisValue], str]] = {
    "attention": _attention,
    "checkpointing": _checkpointing,
    "compile": _compile,
    "optimizer": _optimizer,
    "param_dtype": _param_dtype,
    "allocator": _allocator,
}
"""By axis: why a value cannot be had here, and what to do; empty where it can."""


def check_energy(options: Options, device: Device) -> None:
    """That energy can be measured, where it is the objective.

    Raises:
        UsageError: it cannot.
    """
    if options.search.objective != "tokens_per_joule":
        return
    if options.devices.parallel != 1 and device.kind == "cpu":
        raise UsageError(
            f"--parallel {options.devices.parallel}: the processors' counters count all groups"
            " together; leave it out, or use --objective tokens_per_s"
        )
    if lack := device.energy().lack:
        raise UsageError(f"--objective tokens_per_joule: {lack}; use --objective tokens_per_s")


def check_machine(
    options: Options, workload: Workload, device: Device, *, here: bool = True
) -> None:
    """That the model, and the machine if it is to run `here`, have what `options` ask for.

    Raises:
        UsageError: a value that they lack.
    """
    check_energy(options, device)
    family = FAMILIES[options.model.family]
    for name, axis in AXES.items():
        for value in options.space.axes.get(name, ()) if axis.words else ():
            why = family.lacks(workload.recipe, name, value)
            if not why and here and name in LACKS:
                why = LACKS[name](AxisValue(value, device.kind, workload.dtype))
            if why:
                raise UsageError(f"{axis.flag} {value}: {why}")
