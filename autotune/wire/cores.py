"""The cores of a rank if several groups share a machine, and the use of cores."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.wire.emulated import emulating
from autotune.wire.reports import Conditions, Readings

CORES = "AUTOTUNE_CORES"
"""The variable with the numbers of the cores."""
_BUSY = (0, 1, 2, 5, 6)
"""User, nice, system, irq and softirq of a line of /proc/stat (proc(5))."""
_STEAL = 7


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since some moment: by the clock, and of processor time."""

    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float

    @classmethod
    def now(cls, cores: Collection[int], own_s: float) -> CpuTimes:
        """The times of these `cores`; `own_s` is the caller's. Emulated time has no others."""
        if emulating():
            return cls(time.monotonic(), own_s, 0.0, own_s)
        ticks = os.sysconf("SC_CLK_TCK")
        busy = steal = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
                busy += sum(int(counts[i]) for i in _BUSY)
                steal += int(counts[_STEAL])
        return cls(time.monotonic(), busy / ticks, steal / ticks, own_s)

    def conditions(self, since: CpuTimes, cores: int, readings: Readings) -> Conditions:
        """The state of the machine from `since` to this moment."""
        return Conditions(
            interval_cpu_s=(self.wall_s - since.wall_s) * cores,
            busy_cpu_s=surely_s(self.busy_s - since.busy_s, cores),
            steal_cpu_s=surely_s(self.steal_s - since.steal_s, cores),
            own_cpu_s=max(0.0, self.own_s - since.own_s),
            **asdict(readings),
        )


def surely_s(counted_s: float, cores: int) -> float:
    """The certain part of the kernel's seconds; each core may be off by a tick (proc(5))."""
    return max(0.0, counted_s - math.sqrt(cores) / os.sysconf("SC_CLK_TCK"))


def keep_to_cores() -> None:
    """Keep this process, which still has one thread, to the cores of `CORES`."""
    if numbers := os.environ.get(CORES):
        os.sched_setaffinity(0, map(int, numbers.split(",")))
