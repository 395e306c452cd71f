"""The truth of a recorded grid, and the result of one measurement of each candidate."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from autotune.measure.replay.grid import Grid
from autotune.measure.testbed.recording import Recording
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import measurement, others_share
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.reports import Report
from autotune.wire.stopping import interval

BUDGET_S = 1800.0


@dataclass(frozen=True)
class Point:
    """The state of a search after a probe."""

    elapsed_s: float
    """Virtual seconds."""
    found: Candidate | None
    """The incumbent."""
    lost: bool
    """Whether the probe ran out of memory or was over the ceiling."""
    error: float | None = None
    """Error of the predicted peak as a share, if both are known."""


Course = list[Point]


@dataclass
class Searched:
    """A recording, and the space that is searched in it."""

    grid: Grid
    space: Space


class Truth(Searched):
    """The truth of a recorded grid under one ceiling.

    The value of a candidate is the median of its measurements. It fits if all of them are under
    the ceiling. The capacity is the largest of the median peaks, so that the ceiling binds. `axes`
    are options that leave a part of the grid. Searches draw any measurement, or only those of one
    `repeat`, which then do not judge.
    """

    def __init__(
        self, path: Path, ceiling: float, *, repeat: int | None = None, **axes: Any
    ) -> None:
        recording = _recording(path)
        self.grid = recording.grid
        part = set(recording.space(Options.of(**axes)).candidates)
        self.reports: dict[Candidate, list[Report]] = defaultdict(list)
        """The measurements that searches draw."""
        values, peaks = defaultdict(list), defaultdict(list)
        workload = self.grid.workload
        for row in self.grid.rows:
            if row.report is None or row.candidate not in part:
                continue
            peaks[row.candidate].append(row.report.peaks.device_bytes)
            if repeat in (None, row.repeat):
                self.reports[row.candidate].append(row.report)
            if repeat is None or repeat != row.repeat:
                values[row.candidate].append(value(workload, row.candidate, row.report))
        self.values = {candidate: statistics.median(each) for candidate, each in values.items()}
        if repeat is not None:
            drawn = tuple(row for row in self.grid.rows if row.repeat == repeat)
            self.grid = replace(self.grid, rows=drawn)
        largest = max(statistics.median(each) for each in peaks.values())
        capacity = min(math.ceil(largest), self.grid.limits.capacity_bytes)
        self.options = Options.of(
            budget_s=BUDGET_S, capacity_bytes=capacity, ceiling=ceiling, **axes
        )
        self.space = recording.space(self.options)
        limit = self.space.limits.limit_bytes
        self.fitting = [c for c, seen in peaks.items() if max(seen) <= limit]
        self.best = max((self.values[c] for c in self.fitting), default=0.0)

    def regret(self, found: Candidate | None) -> float:
        """The share by which `found` is below the best that fits; 1 if nothing was found."""
        return 1.0 if found is None else max(0.0, 1 - self.values[found] / self.best)

    def oracle(self, seed: int) -> float:
        """Regret of the best candidate by one measurement of each."""
        rng = random.Random(seed)
        limit = self.space.limits.limit_bytes
        seen: dict[Candidate, float] = {}
        for candidate in self.space.candidates:
            if not (reports := self.reports[candidate]):
                continue  # it ran out of memory
            report = rng.choice(reports)
            if report.peaks.device_bytes <= limit:
                seen[candidate] = value(self.space.workload, candidate, report)
        return self.regret(max(seen, key=lambda c: seen[c], default=None))


@cache
def truth(path: Path, ceiling: float, **axes: Any) -> Truth:
    """The truth, read once a process."""
    return Truth(path, ceiling, **axes)


def fitting_ceilings(path: Path, ceilings: Sequence[float]) -> list[float]:
    """Those of `ceilings` under which something fits."""
    return [ceiling for ceiling in ceilings if truth(path, ceiling).fitting]


def cores() -> Pool:
    """A process for each core."""
    return multiprocessing.get_context("fork").Pool(os.cpu_count())


def repeats(path: Path) -> int:
    """The least number of measurements of a candidate."""
    return min(Counter(row.candidate for row in _recording(path).grid.rows).values())


@cache
def _recording(path: Path) -> Recording:
    return Recording(path)


def value(workload: Workload, candidate: Candidate, report: Report) -> float:
    """Model FLOP/s of one measurement."""
    found = measurement(
        candidate, workload, interval(report.step_s), peaks=report.peaks,
        disturbed_share=others_share(report.conditions), conditions=report.conditions,
    )  # fmt: skip
    return found.model_flops_per_s
