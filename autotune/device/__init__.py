"""The devices of probes, as the study sees them.

`cuda.py` asks NVML. For `cpu.py` the machine's memory is one device, which the ranks share.
Neither creates a CUDA context or imports torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.wire.emulated import emulating

AUTO = "auto: "
"""Prefix of the reason for a device that the user did not name."""


def open_device(spec: str, *, for_torch: bool = False, mixed: bool = False) -> Device:
    """The devices that `spec` names: "auto", "cpu", "cuda", "cuda:0,2" or "emulated:8xH100".

    "cuda:0,2" are positions, in this order, among the devices that CUDA_VISIBLE_DEVICES leaves.
    "auto" is cuda if there is a visible CUDA device, else cpu. An emulation is entered. With
    `for_torch`, this interpreter's torch must be able to use the devices. `mixed` takes all that
    are visible, alike or not, unless they are named. Raises UsageError if `spec` has another form,
    or names a missing or unusable device.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+(?:,\d+)*))?|emulated:.+", spec)
    if match is None:
        raise UsageError(
            f"--device {spec}: unknown; write auto, cpu, cuda, cuda:0,2, emulated:8xH100 or"
            " replay:FILE.csv"
        )
    if spec.startswith("emulated:") and not emulating():
        raise UsageError(f"--device {spec}: only for a study on this machine")
    from autotune.device.cpu import CpuDevice

    if spec == "cpu":
        return CpuDevice("--device")
    from autotune.device.cuda import NoCuda, open_cuda, unfit_torch

    positions = None if match[1] is None else [int(part) for part in match[1].split(",")]
    why = "--device" if spec != "auto" else f"{AUTO}NVML sees CUDA"
    device = open_cuda(positions, why=why, mixed=mixed)
    if not isinstance(device, NoCuda):
        reason = unfit_torch() if for_torch else ""
        if not reason:
            return device
        device = NoCuda(reason)
    if spec == "auto":
        return CpuDevice(f"{AUTO}{device.reason}")
    raise UsageError(f"--device {spec}: {device.reason}; use --device {device.instead}")


def remark(device: Device, dev: Path = Path("/dev")) -> str:
    """A remark on the choice of a device: others were left out, or "auto" took the CPU though
    there is an NVIDIA device. Mostly empty."""
    if device.kind != "cpu":
        return device.remark
    nodes = [*dev.glob("nvidia[0-9]*"), *dev.glob("dxg")]
    if not device.why.startswith(AUTO) or not nodes:
        return ""
    return (
        f"{nodes[0]} is there, but {device.why.removeprefix(AUTO)}: training on the CPU. See what"
        " nvidia-smi says, or write --device cpu if that is meant"
    )
