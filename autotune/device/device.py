"""What a device is: capacity, memory in use, other users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.wire.energy import Counters


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True)
class EnergyCounters:
    """Where ranks read what the devices use."""

    at: str = ""
    """`Start.energy`: "nvml" or RAPL's folder; empty where nothing can be read."""
    lack: str = ""
    """Why nothing can be read there, in words."""
    counters: tuple[Counters, ...] = ()
    """The same, read by this process: one for each device, or that of the host."""


class Device(Protocol):
    """What the study asks of the devices. Sizes in bytes, one entry per chosen device."""

    kind: Literal["cpu", "cuda"]
    infos: tuple[DeviceInfo, ...]
    why: str
    """How it came to be chosen, for people."""
    remark: str
    """What people have to know of that choice; mostly empty."""

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory in use now on each device, whoever holds it."""
        ...

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """Processes that hold device memory now (asked before any rank of ours exists)."""
        ...

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """Environment variables that every rank needs to find its device and its threads."""
        ...

    def energy(self) -> EnergyCounters: ...

    def shares(self, groups: int, ranks: int) -> Sequence[Device]:
        """What is for each of so many `groups` of so many ranks, that run at once."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Names, capacities and driver: what must be equal for two measurements to compare."""
        ...
