"""What else the machine did while steps were timed: other processes, steal, clocks, heat."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pynvml

from autotune.wire.cores import surely_s
from autotune.wire.energy import NOTHING, Counters, EnergyMeter
from autotune.wire.reports import Conditions, Readings
from autotune.wire.sensors import Sensors

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq of a /proc/stat line
_STEAL = 7


@dataclass(frozen=True)
class _CpuTimes:
    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float


SAMPLE_S = 0.25
"""Between two readings of a card, at least: it idles meanwhile, and would run cooler than in
training."""


class Watch:
    """Counts from its making to `conditions`; `sample` reads the card between steps."""

    def __init__(self, device_uuid: str | None, counters: Counters = NOTHING) -> None:
        self._cores = os.sched_getaffinity(0)
        self._sensors = Sensors(pynvml, device_uuid) if device_uuid else None
        self._start = self._cpu_times()
        self.energy = EnergyMeter(counters)
        self._sampled = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last reading is a while ago."""
        return time.monotonic() - self._sampled >= SAMPLE_S

    def sample(self) -> None:
        """Read energy; and clock, power, temperature and throttle reasons, not on the CPU."""
        self._sampled = time.monotonic()
        self.energy.sample()
        if self._sensors is not None:
            self._sensors.sample()

    def others_share(self, ranks: int) -> float:
        """What other programs and the hypervisor took of the processor's time since this watch
        was made, where all `ranks` took as much as this one."""
        now, start = self._cpu_times(), self._start
        own_s = ranks * (now.own_s - start.own_s)
        busy_s = surely_s(now.busy_s - start.busy_s, len(self._cores))
        steal_s = surely_s(now.steal_s - start.steal_s, len(self._cores))
        others_s = max(0.0, busy_s - own_s) + steal_s
        return others_s / max(1e-9, (now.wall_s - start.wall_s) * len(self._cores))

    def conditions(self) -> Conditions:
        """What happened since this watch was made."""
        now, start = self._cpu_times(), self._start
        return Conditions(
            interval_cpu_s=(now.wall_s - start.wall_s) * len(self._cores),
            busy_cpu_s=surely_s(now.busy_s - start.busy_s, len(self._cores)),
            steal_cpu_s=surely_s(now.steal_s - start.steal_s, len(self._cores)),
            own_cpu_s=now.own_s - start.own_s,
            **asdict(Readings() if self._sensors is None else self._sensors.worst),
        )

    def _cpu_times(self) -> _CpuTimes:
        ticks = os.sysconf("SC_CLK_TCK")
        busy = steal = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores:
                busy += sum(int(counts[i]) for i in _BUSY)
                steal += int(counts[_STEAL])
        return _CpuTimes(time.monotonic(), busy / ticks, steal / ticks, time.process_time())
