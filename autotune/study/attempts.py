"""Attempts at one probe: whether another one follows, and their common outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from autotune.measure.runner import Result
from autotune.space.outcome import Outcome, Verdict
from autotune.study.predict.memory import Prediction


class Next(Enum):
    """What comes after an attempt."""

    END = auto()
    AGAIN = auto()
    FRESH = auto()
    """Again, in a fresh group."""


def after(*, warm_memory: bool, over: bool, disturbed: bool, others_memory: bool) -> Next:
    """What comes after an attempt.

    Args:
        warm_memory: a memory verdict of a warm group: earlier probes may be the cause.
        over: the probe was put off, or no attempt or time is left.
        disturbed: something disturbed it that may not disturb a repeat.
        others_memory: others' memory changed; a fresh group reads it anew.
    """
    if warm_memory:
        return Next.FRESH
    if over or not disturbed:
        return Next.END
    return Next.FRESH if others_memory else Next.AGAIN


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The outcome of a job, over all its attempts."""

    outcome: Outcome
    starts_s: Sequence[float] = ()
    compiles_s: Sequence[float] = ()
    put_off: bool = False
    """The outcome says nothing of the candidate, e.g. since a node was lost."""
    suspect: bool = False
    """The probe was put off while it ran: the candidate may be the cause."""
    gone: str = ""
    """Why the slot can run nothing more; empty if it can."""


@dataclass(kw_only=True)
class Tally:
    """The attempts at one probe so far."""

    started_s: float
    """On the budget's clock."""
    kept: Outcome | None = None
    """The outcome of the best attempt."""
    ran: bool = True
    """Whether the last attempt had a node to run on."""
    results: list[Result] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        assert self.kept is not None, "an attempt was made"
        return replace(self.kept, attempts=len(self.results))

    def add(self, result: Result, outcome: Outcome, kept: Outcome) -> None:
        """Count one more."""
        self.results.append(result)
        self.outcomes.append(outcome)
        self.kept = kept

    def probed(self, now_s: float, predicted: Prediction) -> Probed:
        """The outcome of all attempts, if none follows."""
        last = self.results[-1]
        compiles_s = [r.report.compile_s if r.report else 0.0 for r in self.results]
        starts = [(r.group_start_s, c) for r, c in zip(self.results, compiles_s, strict=True)]
        measured = [o.warmup_s + o.timed_s for o in self.outcomes if o.verdict == Verdict.OK]
        outcome = replace(
            self.outcome,
            started_s=self.started_s,
            probe_s=now_s - self.started_s,
            group_start_s=sum((start_s + c for start_s, c in starts if start_s), 0.0),
            compile_s=sum(compiles_s, 0.0),
            warmup_s=sum((o.warmup_s for o in self.outcomes), 0.0),
            timed_s=sum((o.timed_s for o in self.outcomes), 0.0),
            least_s=min(measured, default=0.0),
            predicted_peak_bytes=predicted.bytes,
            predicted_low_bytes=predicted.low_bytes,
            predicted_high_bytes=predicted.high_bytes,
        )
        put_off = last.put_off and outcome.put_off  # an earlier attempt may have told enough
        return Probed(
            outcome=outcome,
            starts_s=[start_s for start_s, _ in starts if start_s],
            compiles_s=list(filter(None, compiles_s)),
            put_off=put_off,
            suspect=put_off and self.ran,
            gone=last.gone,
        )
