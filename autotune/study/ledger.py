"""What a study knows so far: its records, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.outcome import Objective, Record, Verdict, step_s_for
from autotune.predict.predictor import Predictor
from autotune.samplers.open_candidates import OpenCandidates
from autotune.space.candidate import Candidate
from autotune.space.space import Space

FRAGILE_BREAKS = 2
"""A build of which so many probes broke is tried only when nothing else is left."""


class Ledger:
    """Records are added, and what they settle is closed; nothing is taken out."""

    def __init__(self, space: Space, objective: Objective, predictor: Predictor) -> None:
        self._space = space
        self._objective = objective
        self.predictor = predictor
        self.opened = OpenCandidates(space)
        self.records: list[Record] = []
        """Trials and finals, as they ended."""
        self.settled: list[Record] = []
        """Candidates that were never proposed, since a trial's outcome says how they would end."""
        self._bounds: list[Record] = []

    @property
    def all(self) -> list[Record]:
        """Of every candidate of which something is known."""
        return [*self.records, *self.settled]

    @property
    def probed(self) -> int:
        """Probes of the search that came to something."""
        return sum(
            r.purpose == "search" and r.outcome.verdict != Verdict.SKIPPED for r in self.records
        )

    def add(self, record: Record) -> None:
        """Learn what a trial or a final came to."""
        self.records.append(record)
        if record.purpose == "search" and not record.outcome.put_off:
            self.predictor.observe(record.candidate, record.outcome)

    def settle(self, record: Record) -> list[Record]:
        """Close what `record`, which was added, says the end of; returns that."""
        verdict = record.outcome.verdict
        if record.purpose == "final" or verdict.fits or verdict == Verdict.SKIPPED:
            return []
        if verdict.broke:
            self._avoid_fragile(record)
            return []
        self._bounds.append(record)
        settled = [candidate for candidate in self.opened if record.settles(candidate)]
        for candidate in settled:
            self.opened.close(candidate)
        skipped = [record.skipped(candidate) for candidate in settled]
        self.settled += skipped
        return skipped

    def witness(self, candidate: Candidate) -> Record | None:
        """What says how `candidate` would end; None where it has to be measured."""
        return next((record for record in self._bounds if record.settles(candidate)), None)

    @property
    def nothing_fits_yet(self) -> bool:
        """Whether memory bounded something, and nothing was measured to the end and fits."""
        return any(r.outcome.verdict.bounds_memory for r in self._bounds) and not self.fitting

    @property
    def fitting(self) -> list[Record]:
        """Search records measured to the end that fit."""
        return [
            r for r in self.records if r.purpose == "search" and r.outcome.verdict == Verdict.OK
        ]

    @property
    def incumbent(self) -> Record | None:
        """The best of them."""
        return max(self.fitting, key=self.value, default=None)

    def finals_of(self, candidate: Candidate) -> list[Record]:
        """Final rounds of `candidate` that were run."""
        return [
            r
            for r in self.records
            if r.purpose == "final"
            and r.candidate == candidate
            and r.outcome.verdict != Verdict.SKIPPED
        ]

    def value(self, record: Record) -> float:
        """What was measured of the objective; 0 where nothing was."""
        found = record.outcome.measurement
        return found.value(self._objective) if found is not None else 0.0

    def needed_step_s(self, candidate: Candidate) -> float | None:
        """Seconds per step above which `candidate` cannot reach the incumbent's interval."""
        incumbent = self.incumbent
        if incumbent is None:
            return None
        step = incumbent.measured.step
        low = self.value(incumbent) * step.median / step.high
        return step_s_for(low, candidate, self._space.workload, self._objective)

    def broken(self, since: int = 0) -> int:
        """Probes that ended for no reason that their candidate explains, from `since` on."""
        return sum(r.outcome.verdict.broke for r in self.records[since:])

    def promising(self, last: int) -> bool:
        """Whether one of the `last` records is of something that fits."""
        return any(r.outcome.verdict == Verdict.OK for r in self.records[-last:])

    def _avoid_fragile(self, record: Record) -> None:
        build = record.candidate.build
        broken: Sequence[Record] = [r for r in self.records if r.outcome.verdict.broke]
        if sum(r.candidate.build == build for r in broken) >= FRAGILE_BREAKS:
            self.opened.avoid(c for c in self._space.candidates if c.build == build)
