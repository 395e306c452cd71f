"""The machine while steps are timed: other processes, steal, clocks, heat."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pynvml

from autotune.wire.cores import CpuTimes
from autotune.wire.energy import NOTHING, Counters, EnergyMeter, of_board, of_host
from autotune.wire.reports import Conditions, Readings
from autotune.wire.sensors import Sensors

SAMPLE_S = 0.25
"""The least seconds between two readings of a card. It idles meanwhile, and too many readings
would cool it."""


def counters(at: str, device_uuid: str) -> Counters:
    """The counters of a rank's energy, by `Start.energy`."""
    if at == "nvml":
        handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
        read = partial(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return of_board(device_uuid, read, pynvml.NVMLError)
    return of_host(Path(at)) if at else NOTHING


class Watch:
    """Counts from its making to `conditions`. `sample` reads the card between steps."""

    def __init__(self, device_uuid: str | None, counters: Counters = NOTHING) -> None:
        self._cores = os.sched_getaffinity(0)
        self._sensors = (
            Sensors(pynvml, device_uuid, lambda: [os.getpid()]) if device_uuid else None
        )
        self._start = self._cpu_times()
        self.energy = EnergyMeter(counters)
        self._sampled = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last reading is `SAMPLE_S` ago."""
        return time.monotonic() - self._sampled >= SAMPLE_S

    def sample(self) -> None:
        """Read energy; on a GPU also clock, power, temperature and throttle reasons."""
        self._sampled = time.monotonic()
        self.energy.sample()
        if self._sensors is not None:
            self._sensors.sample()

    def others_share(self, ranks: int) -> float:
        """Share of processor time that others and the hypervisor took since the making of this
        watch. Each of `ranks` is assumed to have taken as much as this one."""
        seen = self.conditions()
        others_s = max(0.0, seen.busy_cpu_s - ranks * seen.own_cpu_s) + seen.steal_cpu_s
        return others_s / max(1e-9, seen.interval_cpu_s)

    def conditions(self) -> Conditions:
        """The state of the machine since the making of this watch."""
        readings = Readings() if self._sensors is None else self._sensors.worst
        return self._cpu_times().conditions(self._start, len(self._cores), readings)

    def _cpu_times(self) -> CpuTimes:
        return CpuTimes.now(self._cores, time.process_time())
