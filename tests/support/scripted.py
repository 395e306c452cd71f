"""A runner that answers from a formula, and a reporter that keeps what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.outcome import Record, Verdict
from autotune.runner import Job, Result, StopRequestedError
from autotune.space.space import Build, Candidate, Space
from autotune.wire.messages import Conditions, Peaks, Phase, Report

QUIET = Conditions(10.0, 9.0, 0.0, 9.0, None, None, None, None, False)


def report(step_s: float, peak_bytes: int, conditions: Conditions = QUIET) -> Report:
    peaks = Peaks(peak_bytes, peak_bytes, peak_bytes, peak_bytes, peak_bytes, 0)
    steps = [step_s] * 6
    return Report(0, steps, steps[:3], 3 * step_s, 6 * step_s, False, 1.0, peaks, 0, conditions)


def ok(step_s: float, peak_bytes: int = 2**20, conditions: Conditions = QUIET) -> Result:
    return Result(Verdict.OK, report=report(step_s, peak_bytes, conditions))


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

    def retire(self, until: float) -> None:
        self.live_build = None

    @property
    def searched(self) -> list[Candidate]:
        return [job.candidate for job in self.jobs if not job.fresh]


@dataclass
class Listener:
    """A reporter."""

    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def started(self, space: Space, budget_s: float, folder: Path) -> None: ...
    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None: ...
    def probing(self, kind: str, candidate: Candidate) -> None: ...
    def phase(self, phase: Phase, steps: int) -> None: ...

    def told(self, record: Record, incumbent: Record | None) -> None:
        self.records.append(record)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finished(self, document: dict[str, Any], path: Path) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
