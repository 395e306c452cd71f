"""Whole studies on a runner that answers from formulas."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.measure.runner import Job, Result
from autotune.result.choice import Choice
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import Journal
from autotune.result.folder.journal_file import JournalFile
from autotune.result.folder.storage import Storage
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Objective, Record, Verdict
from autotune.space.space import Space
from autotune.study.neighbours import Neighbours
from autotune.study.study import Study
from autotune.wire.budget import Clock, StopFlag
from tests.support.records import MIB, space
from tests.support.scripted import Listener, ScriptedRunner, ok

Answer = Callable[[Job], Result]
PLENTY_S = 1e6


def saturating(job: Job, mib_a_token: int = 1) -> Result:
    """A machine that is faster per token the more tokens it gets."""
    c = job.candidate
    step_s = 1e-3 * c.depth**3 * (c.tokens + 64) * (1.3 if c.checkpointing == "full" else 1.0)
    return ok(step_s, mib_a_token * c.tokens * MIB)


class Killed(BaseException):
    """Stands for a power failure within a process."""


def killing(after: int, answer: Answer = saturating, error: BaseException | None = None) -> Answer:
    """`answer`, until the process dies in the job that comes after so many, or `error` is raised
    from then on."""
    jobs: list[Job] = []

    def until(job: Job) -> Result:
        jobs.append(job)
        if len(jobs) > after:
            raise error or Killed
        return answer(job)

    return until


def open_journal(
    folder: Path, among: Space, storage: Storage | None = None, objective: Objective = "flops"
) -> Journal:
    made = Folder(folder)
    made.prepare()
    return Journal.open(made, among, storage or JournalFile(made.optuna_log), objective)


class Run:
    """One run of the study in `folder`, to its end; it goes on with what is there."""

    def __init__(
        self,
        folder: Path,
        answer: Answer = saturating,
        among: Space | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        storage: Storage | None = None,
        slots: int = 1,
        neighbours: Neighbours | None = None,
        **options: Any,
    ) -> None:
        """`now` is the time that the budget counts. One candidate has finals by default."""
        among = among or space()
        asked = Options.of(**{"budget_s": PLENTY_S, "finals": 1} | options)
        self.folder = folder
        self.runners = [ScriptedRunner(answer) for _ in range(slots)]
        self.runner = self.runners[0]
        self.listener = Listener()
        self.published: list[Sequence[Record]] = []
        """All records at each new incumbent."""
        self.journal = open_journal(folder, among, storage, asked.search.objective)
        past = self.journal.past
        stop = StopFlag()
        clock = Clock(asked.limits.budget_s, now(), now)
        clock.go_on(past.spent_s, asked.limits.budget_s)
        self.study = Study(
            options=asked,
            space=among,
            device_kind="cpu",
            clock=clock,
            journal=self.journal,
            runners=self.runners,
            reporter=self.listener,
            stop=stop,
            publish=lambda ledger: self.published.append(ledger.all),
            neighbours=neighbours,
        )
        try:
            self.study.run()
        finally:
            self.study.close()
            stop.restore()

    @property
    def choice(self) -> Choice:
        """Its result, which there is."""
        found = self.study.ledger.choice()
        assert found is not None
        return found

    @property
    def told(self) -> list[Record]:
        """Trials and finals, as they ended."""
        return self.study.ledger.records

    @property
    def records(self) -> list[Record]:
        """The same, and what they settled."""
        return self.study.ledger.all

    def verdicts(self) -> dict[Candidate, Verdict]:
        """Of the search."""
        return {r.candidate: r.outcome.verdict for r in self.records if r.purpose == "search"}

    @property
    def ended(self) -> list[tuple[str, Candidate, Verdict]]:
        """All ends, in a fixed order."""
        return sorted((r.purpose, r.candidate, r.outcome.verdict) for r in self.records)
