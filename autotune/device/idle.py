"""A check whether somebody else uses a device."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.device.device import BusyProcess, Device, DeviceInfo
from autotune.errors import UsageError
from autotune.units import gib

BUSY_SHARE = 0.05
BUSY_BYTES = 2 * 2**30
"""Others may hold no more than `BUSY_SHARE` and this. A desktop takes 6 % of a small card."""


def check_idle(device: Device, allow_busy: bool) -> None:
    """Refuse a device that somebody else uses: memory and time would not be ours. Raises
    UsageError if others hold more of a chosen device than they may, and `allow_busy` is off."""
    if allow_busy:
        return
    processes = device.other_processes()
    for info, in_use_bytes in zip(device.infos, device.in_use_bytes(), strict=True):
        if said := busy(info, processes, in_use_bytes):
            raise UsageError(f"--device: {said}")


def busy(info: DeviceInfo, processes: Sequence[BusyProcess], in_use_bytes: int) -> str:
    """Who uses a device too much for a study, and a remedy; empty for nobody."""
    theirs = [process for process in processes if process.device_index == info.index]
    holders = _holders(info, theirs, in_use_bytes)
    if not holders:
        return ""
    return (
        f"{info.name} ({info.uuid}) is busy: {holders};"
        " wait, choose another --device, or pass --allow-busy"
    )


def _holders(info: DeviceInfo, theirs: list[BusyProcess], in_use_bytes: int) -> str:
    """Who holds more of a device than others may, in words; empty if nobody does."""
    limit_bytes = max(BUSY_SHARE * info.capacity_bytes, BUSY_BYTES)
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
