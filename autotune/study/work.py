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
    """A probe to run, and what to do when it has ended."""

    job: Job
    predicted: Prediction
    until_s: float
    """On the budget's clock."""
    attempts: int = ATTEMPTS
    """At most, where the machine disturbs it."""
    told: Callable[[Probed], None]
    excused: Callable[[], None] = lambda: None
    """In the place of `told`, where the user stopped the study in it."""


@dataclass(kw_only=True, eq=False)
class Slot:
    """Where one probe at a time runs."""

    number: int
    runner: Runner
    prober: Prober
    work: Work | None = None
    """What it runs now."""


NextWork = Callable[[Sequence[Slot]], tuple[Slot, Work] | None]
"""What to run next, and in which of the free slots; None as long as nothing is worth it."""
