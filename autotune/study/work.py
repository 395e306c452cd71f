"""A probe to run, and the slot that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.measure.runner import Job, Runner
from autotune.study.attempts import Probed
from autotune.study.predict.memory import Prediction
from autotune.study.prober import ATTEMPTS, Prober


@dataclass(frozen=True, kw_only=True)
class Work:
    """A probe to run, and the functions that hear of its end."""

    job: Job
    predicted: Prediction
    until_s: float
    """On the budget's clock."""
    attempts: int = ATTEMPTS
    """The most runs, if the machine disturbs the probe."""
    told: Callable[[Probed], None]
    excused: Callable[[], None] = lambda: None
    """Called instead of `told` if the user stopped the study in this probe."""


@dataclass(kw_only=True, eq=False)
class Slot:
    """Where one probe at a time runs."""

    number: int
    runner: Runner
    prober: Prober
    work: Work | None = None
    """The probe that runs now."""


NextWork = Callable[[Sequence[Slot]], tuple[Slot, Work] | None]
"""The next probe and its slot, one of the free ones; None while nothing is worth a probe."""
