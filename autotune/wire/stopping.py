"""The end of a probe's warm-up and timing, and the interval of its step times.

Ranks, replays and ranks of tests use the same `Steps`, so all stop at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

DISTURBED_PART = 0.25
"""A disturbed timing, which will be repeated, ends after this share of its time."""
HOPELESS_MARGIN = 1.25
"""Before an interval exists, a step slower by this factor makes a probe hopeless."""


class Phase(StrEnum):
    """The phase of a rank. Each one has its own deadline (`measure/runner/group.py`)."""

    IMPORT = "import"
    BUILD = "build"
    ENGINE = "engine"
    COMPILE = "compile"
    WARMUP = "warmup"
    TIMED = "timed"
    HOT = "hot"
    """With a hot expert, after the timed steps."""
    EVALUATE = "evaluate"
    SAVE = "save"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule that ends warm-up and timing. `autotune.study.prober` alone chooses its numbers."""

    warmup_steps: int
    """The least full optimizer steps before timing."""
    warmup_tolerance: float
    """Warm-up ends when the last two steps differ by at most this share."""
    warmup_limit_s: float
    """Warm-up ends after the step that passes this, stable or not."""
    timed_steps: int
    half_width: float
    """Timing ends when half the 95 % interval of the median is within this share of it."""
    timed_limit_s: float
    """Timing ends after the step that passes this, and at least `timed_steps`."""
    sustain_s: float = 0.0
    """Seconds of steps before a group is first timed: a GPU's clocks fall under load."""
    timed_least_s: float = 0.0
    """The least seconds of timed steps if other programs take little time."""
    energy_s: float = 0.0
    """The least seconds of timed steps in any case, for counters of energy."""
    calm: float = 1.0
    """If other programs take a larger share of processor time, timing ends early."""

    def warmed(self, warmup: Series, ran_s: float = 0.0) -> bool:
        """Whether warm-up may end: enough full steps, and the last two agree or time is up.
        `ran_s` are seconds of steps in the group's earlier probes."""
        if len(warmup.step_s) < self.warmup_steps or ran_s + warmup.wall_s < self.sustain_s:
            return False
        *_, before, last = warmup.step_s
        agree = abs(last - before) <= self.warmup_tolerance * last
        return agree or warmup.wall_s >= self.warmup_limit_s

    def settled(self, timed: Series, others: float = 0.0) -> bool:
        """Whether timing may end: the median is known, time is up, or `others` take too much."""
        if len(timed.step_s) < self.timed_steps:
            return False
        if timed.wall_s < self.energy_s:
            return False
        if others > self.calm and timed.wall_s >= DISTURBED_PART * self.timed_limit_s:
            return True
        if timed.wall_s < self.timed_least_s:
            return False
        if timed.wall_s >= self.timed_limit_s:
            return True
        return timed.due and interval(timed.step_s).half_width <= self.half_width

    def hopeless(self, needed_step_s: float | None, warmup: Series, timed: Series) -> bool:
        """Whether steps of at most `needed_step_s`, the incumbent's, are out of reach. Never
        before the end of the warm-up's full steps, which show the memory peak."""
        if needed_step_s is None or len(warmup.step_s) < self.warmup_steps:
            return False
        if len(timed.step_s) >= self.timed_steps:
            return timed.due and interval(timed.step_s).low > needed_step_s
        return min(warmup.step_s[1:] + timed.step_s) > HOPELESS_MARGIN * needed_step_s


@dataclass
class Series:
    """Steps so far: seconds of each in the real schedule, and their wall time here."""

    step_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, step_s: float, wall_s: float) -> None:
        self.step_s.append(step_s)
        self.wall_s += wall_s

    @property
    def due(self) -> bool:
        """Whether to look at the interval now: after every step, later after every 20th part."""
        return len(self.step_s) % max(1, len(self.step_s) // 20) == 0


class Steps:
    """The steps of one probe so far, and whether another one is wanted.

    First come those of `Phase.WARMUP`, then those of `Phase.TIMED`.
    """

    def __init__(self, rule: Rule, needed_step_s: float | None, ran_s: float = 0.0) -> None:
        """Slower steps than `needed_step_s` cannot beat the incumbent; None without an incumbent.
        `ran_s` are seconds of steps in the group's earlier probes."""
        self._rule = rule
        self._ran_s = ran_s
        self._needed_step_s = needed_step_s
        self.warmup = Series()
        self.timed = Series()
        self.others = 0.0
        """Share of processor time that other programs took during the timing so far."""
        self.stopped_early = False
        """Whether it stopped since `needed_step_s` is out of reach."""

    def of(self, phase: Phase) -> Series:
        return self.timed if phase is Phase.TIMED else self.warmup

    def wanted(self, phase: Phase) -> bool:
        """Whether another step of `phase` is needed."""
        if self.stopped_early:
            return False
        if phase is Phase.TIMED:
            return not self._rule.settled(self.timed, self.others)
        return not self._rule.warmed(self.warmup, self._ran_s)

    def add(self, phase: Phase, step_s: float, wall_s: float) -> None:
        """Add a step of `phase`: its seconds in the real schedule, and its wall time."""
        self.of(phase).add(step_s, wall_s)
        self.stopped_early = self._rule.hopeless(self._needed_step_s, self.warmup, self.timed)

    @property
    def least_timed(self) -> int:
        return self._rule.timed_steps

    @property
    def ran_s(self) -> float:
        """Seconds of the group's steps in all, with earlier probes."""
        return self._ran_s + self.warmup.wall_s + self.timed.wall_s

    @property
    def step_s(self) -> list[float]:
        """The steps that count: timed ones; if there are fewer than two, all but the first."""
        enough = len(self.timed.step_s) >= min(2, self._rule.timed_steps)
        return self.timed.step_s if enough else (self.warmup.step_s + self.timed.step_s)[1:]


@dataclass(frozen=True)
class Interval:
    """Median of step times and its distribution-free 95 % interval, in seconds."""

    median: float
    low: float
    high: float
    steps: int

    @property
    def half_width(self) -> float:
        """Half the interval's length as a share of the median."""
        return (self.high - self.low) / 2 / self.median

    def plus(self, seconds: float) -> Interval:
        """The interval with `seconds` added to every bound."""
        return Interval(self.median + seconds, self.low + seconds, self.high + seconds, self.steps)

    def times(self, factor: float) -> Interval:
        """The interval with every bound multiplied by `factor`."""
        return Interval(factor * self.median, factor * self.low, factor * self.high, self.steps)


def interval(step_s: list[float]) -> Interval:
    """Median and 95 % interval of `step_s` from order statistics; no shape is assumed.

    The interval spans the k-th smallest to the k-th largest value. k is the largest for which a
    binomial(n, 1/2) puts at least 95 % between them. Below 6 values no such k exists and the
    interval is the whole range. Source: David & Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered = sorted(step_s)
    n = len(ordered)
    if not n:
        raise ValueError("no step times")
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    k = _order(n)
    return Interval(middle, ordered[k - 1], ordered[n - k], n)


@cache
def _order(n: int) -> int:
    k, ways, below, allowed = 0, 1, 0, 2**n // 40  # 2.5 % of the cases, on each side
    while k < (n + 1) // 2:
        below += ways  # in which k or fewer of n values lie under the median
        if below > allowed:
            break
        k += 1
        ways = ways * (n - k + 1) // k
    return max(1, k)
