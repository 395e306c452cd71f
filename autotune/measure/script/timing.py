"""The timing of one launch: its steps by the rule, and the machine meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.measure.script.launch import ALL_CORES, Launch
from autotune.measure.script.seen import Ranks
from autotune.wire import reports
from autotune.wire.cores import CpuTimes
from autotune.wire.emulated import emulating
from autotune.wire.energy import Counters, EnergyMeter
from autotune.wire.reports import Conditions, Readings
from autotune.wire.sensors import Sensors
from autotune.wire.stopping import Phase, Steps

ROUGH_STEPS = 2
"""So many steps after the first one give a rough speed."""


class Timing:
    """Feeds steps to the rule, and looks at the machine while they are timed."""

    def __init__(
        self,
        steps: Steps,
        launch: Launch,
        counters: Sequence[Counters],
        sensors: Callable[[], Sequence[Sensors]],
    ) -> None:
        """`counters` are of each device in use, or of the host. `sensors` opens each device's."""
        self.steps = steps
        self._counters = counters
        self._energy: list[EnergyMeter] = []
        self._open = sensors
        self._sensors: Sequence[Sensors] = ()
        self.retries = 0
        """Retries of the allocator before the timing."""
        self.began_at = 0
        """The number of the first timed step."""
        self._launch = launch
        self._fed = 0
        self._fed_at = 0.0
        self._phase: Phase | None = None
        self._before: CpuTimes | None = None

    @property
    def enough(self) -> bool:
        """Whether the rule wants no more steps."""
        return self._phase is Phase.TIMED and not self.steps.wanted(Phase.TIMED)

    @property
    def measured(self) -> bool:
        """Whether the script made the least steps of a timing before it ended."""
        return len(self.steps.timed.step_s) >= self.steps.least_timed

    @property
    def rough(self) -> bool:
        """Whether the steps so far give a rough speed."""
        return len(self.steps.step_s) >= ROUGH_STEPS

    def feed(self, ranks: Ranks) -> Phase | None:
        """Take over the steps that all ranks made; returns the phase of the latest.

        With rollouts each is the mean of a cycle, which begins with one; the first is not told.
        """
        now, cycle = time.monotonic(), ranks.cycle
        if not cycle:
            self._fed_at = now
            return None
        self._fed = self._fed or cycle - 1
        new = (ranks.made - self._fed) // cycle
        ran_s = (now - self._fed_at) / new if new else 0.0
        if new or not self._fed:
            self._fed_at = now
        while self._fed + cycle <= ranks.made and not self.enough:
            if not self.steps.wanted(Phase.WARMUP) and self._phase is not Phase.TIMED:
                self._phase, self.began_at = Phase.TIMED, self._fed
                self._before = self._launch.times()
                self._energy = [EnergyMeter(of) for of in self._counters]
                self._sensors = self._open()
                told = [r.latest.peaks for r in ranks.all if r.latest and r.latest.peaks]
                self.retries = max((peaks.alloc_retries for peaks in told), default=0)
            phase = Phase.WARMUP if self.steps.wanted(Phase.WARMUP) else Phase.TIMED
            if self.steps.stopped_early:
                self._phase = Phase.TIMED
                break
            step_s = ranks.step_s(self._fed, cycle)
            self.steps.add(phase, step_s, ran_s if emulating() else cycle * step_s)
            self._phase = phase if self._phase is not Phase.TIMED else self._phase
            self._fed += cycle
        if self.steps.stopped_early:
            self._phase = Phase.TIMED
        for energy in self._energy:
            energy.sample()
        for sensors in self._sensors:
            sensors.sample()
        return self._phase

    def energy(self) -> reports.Energy | None:
        """Energy of the timed steps, at the mean power since they began; None if unknown."""
        of_s = sum(self.steps.step_s)
        known = [used for each in self._energy if (used := each.used(of_s)) is not None]
        if not known or len(known) < len(self._energy):
            return None
        joules = sum(used.joules for used in known)
        return reports.Energy(joules, ",".join(used.covers for used in known))

    def conditions(self) -> Conditions:
        """The state of the machine since the timing began."""
        now = self._launch.times()
        readings = Readings.worst([each.worst for each in self._sensors])
        return now.conditions(self._before or now, len(ALL_CORES), readings)
