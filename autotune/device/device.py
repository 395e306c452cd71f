"""The interface of a device: capacity, memory in use, other users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.wire.energy import Counters


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """One device that a rank may use."""

    index: int
    """Position among the chosen devices, which is its local rank."""
    uuid: str
    """Stable name: NVML's UUID, "cpu" on the CPU."""
    name: str
    capacity_bytes: int
    bf16: bool
    """Whether bf16 matrix products run in hardware."""
    fp8: bool = True
    """The same for fp8. A rank refuses what turns out not to."""


@dataclass(frozen=True)
class BusyProcess:
    """Somebody else's process on a chosen device."""

    pid: int
    name: str
    used_bytes: int
    device_index: int


@dataclass(frozen=True)
class EnergyCounters:
    """Counters by which ranks read the energy of devices."""

    at: str = ""
    """`Start.energy`: "nvml" or RAPL's folder; empty without readable counters."""
    lack: str = ""
    """Why there are no readable counters, in words."""
    counters: tuple[Counters, ...] = ()
    """The counters for this process: one for each device, or that of the host."""


class Device(Protocol):
    """The devices of a study. Sizes are in bytes, with one entry per chosen device."""

    kind: Literal["cpu", "cuda"]
    infos: tuple[DeviceInfo, ...]
    why: str
    """Why it was chosen, to show."""
    remark: str
    """A remark on that choice to show; mostly empty."""

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory in use now on each device, whoever holds it."""

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """Processes that hold device memory now (asked before any rank of ours exists)."""

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """Environment variables of every rank for its device and its threads."""

    def energy(self) -> EnergyCounters: ...

    def shares(self, groups: int, ranks: int) -> Sequence[Device]:
        """The devices of each of `groups`, with so many ranks each, that run at once."""

    def fingerprint(self) -> dict[str, Any]:
        """Names, capacities and driver, which must be equal to compare two measurements."""
