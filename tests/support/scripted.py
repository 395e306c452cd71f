"""A runner that answers from a formula, and a reporter that keeps all events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.measure.runner import Job, Result, StopRequestedError
from autotune.show.report import Reporter
from autotune.space.candidate import Build, Candidate
from autotune.space.outcome import Record, Verdict
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.wire.reports import Conditions, Energy, Peaks, Report
from tests.support.records import QUIET


def report(
    step_s: float, peak_bytes: int, conditions: Conditions = QUIET, joules: float | None = None
) -> Report:
    """Of 6 timed steps, with `joules` for each."""
    peaks = Peaks.same(peak_bytes)
    steps = [step_s] * 6
    return Report(
        number=0,
        step_s=steps,
        warmup_step_s=steps[:3],
        warmup_s=3 * step_s,
        timed_s=6 * step_s,
        stopped_early=False,
        loss=1.0,
        peaks=peaks,
        state_bytes=0,
        conditions=conditions,
        energy=None if joules is None else Energy(6 * joules, "cpu"),
    )


def ok(
    step_s: float,
    peak_bytes: int = 2**20,
    conditions: Conditions = QUIET,
    joules: float | None = None,
) -> Result:
    return Result(verdict=Verdict.OK, report=report(step_s, peak_bytes, conditions, joules))


@dataclass
class ScriptedRunner:
    """Answers every job with `answer(job)`; keeps the jobs and which of them started a group."""

    answer: Callable[[Job], Result]
    jobs: list[Job] = field(default_factory=list)
    live_build: Build | None = None
    stop_after: int | None = None

    def run(self, job: Job, deadline: float) -> Result:
        if self.stop_after is not None and len(self.jobs) >= self.stop_after:
            raise StopRequestedError
        self.jobs.append(job)
        result = self.answer(job)
        self.live_build = job.candidate.build if result.report is not None else None
        return result

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        return None

    def retire(self, until: float) -> None:
        self.live_build = None

    def kill(self) -> None: ...
    def close(self) -> None: ...

    @property
    def searched(self) -> list[Candidate]:
        return [job.candidate for job in self.jobs if not job.fresh]


@dataclass
class Listener(Reporter):
    """A reporter."""

    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untils_s: dict[str, list[float]] = field(default_factory=dict)
    """By purpose, the end of the budget's part for each probe."""

    def probing(self, purpose: str, candidate: Candidate, until_s: float, slot: int = 0) -> None:
        self.untils_s.setdefault(purpose, []).append(until_s)

    def told(self, record: Record, incumbent: Record | None) -> None:
        self.records.append(record)

    def note(self, text: str) -> None:
        self.notes.append(text)
