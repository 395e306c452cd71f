"""The devices that probes run on, as the study sees them: capacity, memory in use, other users.

One Protocol, three implementations: `cuda.py` asks NVML, `cpu.py` takes the machine's memory as
one device that the ranks share out, `replay.py` reads a recorded grid. None creates a CUDA context
or imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from autotune.options import UsageError, gib

BUSY_SHARE = 0.05
"""Share of a device's capacity that others may hold before a study refuses to start on it."""


@dataclass(frozen=True)
class DeviceInfo:
    """One device that a rank may use."""

    index: int
    """Position among the chosen devices: the local rank that gets it."""
    uuid: str
    """Stable name: NVML's UUID, "cpu" on the CPU."""
    name: str
    capacity_bytes: int
    bf16: bool
    """Whether bf16 matrix products run in hardware."""


@dataclass(frozen=True)
class BusyProcess:
    """Somebody else's process on a chosen device."""

    pid: int
    name: str
    used_bytes: int
    device_index: int


class Device(Protocol):
    """What the study asks of the devices. Sizes in bytes, one entry per chosen device."""

    kind: Literal["cpu", "cuda"]
    infos: tuple[DeviceInfo, ...]
    why: str
    """How it came to be chosen, for people."""

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory in use now on each device, whoever holds it."""
        ...

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """Processes that hold device memory now (asked before any rank of ours exists)."""
        ...

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """Environment variables that every rank needs to find its device and its threads."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Names, capacities and driver: what must be equal for two measurements to compare."""
        ...


def open_device(spec: str) -> Device:
    """The devices that `spec` names: "auto", "cpu", "cuda", "cuda:0,2" or "replay:FILE.csv".

    "cuda:0,2" are positions among the devices that CUDA_VISIBLE_DEVICES leaves, in the order
    written. "auto" is cuda where there is a visible CUDA device, and else cpu.

    Raises:
        UsageError: `spec` is none of these, or names a device or a recording that is not there.
    """
    if spec.startswith("replay:"):
        from autotune.replay.device import ReplayDevice

        return ReplayDevice(Path(spec.removeprefix("replay:")))
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+(?:,\d+)*))?", spec)
    if match is None:
        raise UsageError(
            f"--device {spec}: unknown; write auto, cpu, cuda or cuda:0,2, or replay:FILE.csv"
        )
    from autotune.device.cpu import CpuDevice

    if spec == "cpu":
        return CpuDevice("--device")
    from autotune.device.cuda import NoCuda, open_cuda

    positions = None if match[1] is None else [int(part) for part in match[1].split(",")]
    device = open_cuda(positions, why="--device" if spec != "auto" else "auto: NVML sees CUDA")
    if not isinstance(device, NoCuda):
        return device
    if spec == "auto":
        return CpuDevice(f"auto: {device.reason}")
    raise UsageError(f"--device {spec}: {device.reason}; use --device {device.instead}")


def check_idle(device: Device, allow_busy: bool) -> None:
    """Refuse a device that somebody else uses: neither its memory nor its time would be ours.

    Raises:
        UsageError: others hold more than `BUSY_SHARE` of a chosen device, and `allow_busy` is off.
    """
    if allow_busy:
        return
    processes = device.other_processes()
    for info, in_use_bytes in zip(device.infos, device.in_use_bytes(), strict=True):
        theirs = [process for process in processes if process.device_index == info.index]
        holders = _holders(info, theirs, in_use_bytes)
        if holders:
            raise UsageError(
                f"--device: {info.name} ({info.uuid}) is busy: {holders};"
                " wait, choose another --device, or pass --allow-busy"
            )


def _holders(info: DeviceInfo, theirs: list[BusyProcess], in_use_bytes: int) -> str:
    """Who holds more of a device than others may, in words; empty if nobody does."""
    limit_bytes = BUSY_SHARE * info.capacity_bytes
    named_bytes = sum(process.used_bytes for process in theirs)
    if named_bytes > limit_bytes:
        largest = max(theirs, key=lambda process: process.used_bytes)
        rest = f", {gib(named_bytes)} with {len(theirs) - 1} more" if len(theirs) > 1 else ""
        return f"process {largest.pid} ({largest.name}) holds {gib(largest.used_bytes)}{rest}"
    # A container hides processes outside it, and some drivers list them without a size.
    if in_use_bytes - named_bytes > limit_bytes:
        return (
            f"{gib(in_use_bytes - named_bytes)} of {gib(info.capacity_bytes)} are in use by"
            " processes that NVML does not name or gives no size for"
        )
    return ""
