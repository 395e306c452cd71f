"""The records of a study so far, and the conclusions from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.result.choice import EQUAL, Certainty, Choice, Repeats, agree, repeats_in, winner
from autotune.space.arrays import Array
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Record, Verdict, step_cost_for
from autotune.space.space import Space
from autotune.study.predict.belief import Belief
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.open_candidates import OpenCandidates

SURE = 2.0
"""A difference of so many standard deviations is certain."""
DRAWS = 2000
FRAGILE_BREAKS = 2
"""After so many broken probes a build is tried only when nothing else is left."""


class Ledger:
    """Keeps records, and closes the candidates that they settle. Nothing is taken out."""

    def __init__(self, space: Space, objective: Objective, predictor: Predictor) -> None:
        self._space = space
        self._objective = objective
        self.predictor = predictor
        self.opened = OpenCandidates(space)
        self.records: list[Record] = []
        """Trials and finals, as they ended."""
        self.settled: list[Record] = []
        """Records of candidates that were never proposed: another trial settled them."""
        self._bounds: list[Record] = []
        self._certain: dict[Candidate, Certainty | None] = {}
        """Results of `certainty` for the present records."""
        self._fits: list[Record] | None = None
        """Result of `_fitted` for the present records."""
        self._place = {candidate: i for i, candidate in enumerate(space.candidates)}
        self._work = {
            c: step_cost_for(1.0, c, space.workload, objective) for c in space.candidates
        }
        """The cost of a step at which a candidate's value is 1."""

    @property
    def all(self) -> list[Record]:
        """Records of all candidates, proposed or settled."""
        return [*self.records, *self.settled]

    @property
    def probed(self) -> int:
        """Number of probes of the search, skipped ones left out."""
        return sum(
            r.purpose == "search" and r.outcome.verdict != Verdict.SKIPPED for r in self.records
        )

    @property
    def tried(self) -> set[Candidate]:
        """Candidates that the search need not propose again."""
        return {
            r.candidate for r in self.records if r.purpose == "search" and not r.outcome.put_off
        }

    @property
    def untried(self) -> list[tuple[str, Any]]:
        """Searched axes, but for micro_batch, each with a value of which no record tells."""
        known = [r.candidate for r in self.all if not r.outcome.put_off]
        return [
            (name, value)
            for name, values in self._space.axes.items()
            if name != "micro_batch" and len(values) > 1
            for value in values
            if any(getattr(c, name) == value for c in self._space.candidates)
            and not any(getattr(c, name) == value for c in known)
        ]

    @property
    def lost(self) -> int:
        """Number of probes of the search that did not fit."""
        return sum(r.purpose == "search" and r.outcome.verdict.bounds_memory for r in self.records)

    def add(self, record: Record) -> None:
        """Learn the outcome of a trial or a final."""
        self.records.append(record)
        self._certain.clear()
        self._fits = None
        if not record.outcome.put_off:
            final = record.purpose != "search"
            self.predictor.observe(record.candidate, record.outcome, final=final)

    def take(self, records: Sequence[Record]) -> list[Record]:
        """Learn records of others or an earlier run; returns those that they settle."""
        for record in records:
            if record.purpose == "search" and not record.outcome.put_off:
                self.opened.close(record.candidate)
        settled = []
        for record in records:
            self.add(record)
            if not record.outcome.put_off:
                settled += self.settle(record)
        return settled

    def settle(self, record: Record) -> list[Record]:
        """Close the candidates that `record`, which was added, settles; returns their records."""
        verdict = record.outcome.verdict
        if record.purpose != "search" or verdict.fits or verdict == Verdict.SKIPPED:
            return []
        if verdict.broke:
            self._avoid_fragile(record)
            return []
        self._bounds.append(record)
        settled = [candidate for candidate in self.opened if record.settles(candidate)]
        for candidate in settled:
            self.opened.close(candidate)
        name = self._space.name(record.candidate)
        skipped = [record.skipped(candidate, name=name) for candidate in settled]
        self.settled += skipped
        return skipped

    def witness(self, candidate: Candidate) -> Record | None:
        """The record that settles `candidate`; None if it has to be measured."""
        return next((record for record in self._bounds if record.settles(candidate)), None)

    @property
    def nothing_fits_yet(self) -> bool:
        """Whether something did not fit, and nothing that fits was measured to the end."""
        return any(r.outcome.verdict.bounds_memory for r in self._bounds) and not self.fitting

    @property
    def fitting(self) -> list[Record]:
        """Search records measured to the end that fit, and failed no final since."""
        return [r for r in self._fitted() if r.outcome.verdict == Verdict.OK]

    @property
    def contenders(self) -> list[Record]:
        """`fitting`, and candidates that fit but were stopped early; the best come first."""
        return sorted(self._fitted(), key=lambda r: self.believed(r.candidate), reverse=True)

    def _fitted(self) -> list[Record]:
        if self._fits is None:
            self._fits = self._find_fitted()
        return self._fits

    def _find_fitted(self) -> list[Record]:
        failed = {
            r.candidate
            for r in self.records
            if (r.purpose == "final" and not r.outcome.verdict.fits and not r.outcome.put_off)
            or (r.purpose == "phases" and r.outcome.verdict.bounds_memory)
        }
        fitted = {
            r.candidate: r
            for r in self.records
            if r.purpose == "search" and r.outcome.verdict.fits and r.candidate not in failed
        }
        return list(fitted.values())

    @property
    def incumbent(self) -> Record | None:
        """The best of `fitting`, by all measurements."""
        return max(self.fitting, key=lambda r: self.believed(r.candidate), default=None)

    def believed(self, candidate: Candidate) -> float:
        """The value of the objective for `candidate`, by all measurements."""
        return self._work[candidate] / math.exp(self._log_cost.mean[self._place[candidate]])

    def searched(self, record: Record) -> float:
        """The objective's value as the search measured it; 0 if it did not finish."""
        whole = record.outcome.verdict == Verdict.OK
        return record.measured.value(self._objective) if whole else 0.0

    def agrees(self, candidate: Candidate) -> bool:
        """Whether its finals agree as a confirmed result needs it; there is at least one."""
        seen = [r for r in self.records if r.candidate == candidate]
        return agree(seen, self._space.workload, self.repeats)

    def certainty(self, of: Candidate) -> Certainty | None:
        """How surely `of` is the best that fits; None if it failed since or is the only one."""
        if of not in self._certain:
            self._certain[of] = self._certainty(of)
        return self._certain[of]

    def _certainty(self, of: Candidate) -> Certainty | None:
        among = self.contenders
        places = {r.candidate: place for place, r in enumerate(among)}
        if of not in places or len(places) == 1:
            return None
        values = self._draws(among)
        mine, most = values[:, places[of]], values.max(axis=1)
        wins = np.bincount(values.argmax(axis=1), minlength=len(among)) / len(values)
        rivals = [place for place, r in enumerate(among) if r.candidate != of and wins[place]]
        rival = max(rivals, key=lambda place: wins[place], default=None)
        return Certainty(
            best=float(wins[places[of]]),
            equal=float((mine >= most + math.log(1 - EQUAL)).mean()),
            next=None if rival is None else among[rival].candidate,
            next_best=0.0 if rival is None else float(wins[rival]),
        )

    def rounds_to_tell(self, one: Candidate, other: Candidate) -> float:
        """Finals of each until `winner` rules out the slower one, if they differ as expected. The
        standard error of their difference is then no larger than the difference."""
        apart = abs(math.log(self.believed(one) / self.believed(other)))
        repeats = self.repeats
        return 2 * (repeats.spread / max(apart, EQUAL)) ** 2 if repeats is not None else 0.0

    @property
    def repeats(self) -> Repeats | None:
        """The spread of the finals of one candidate; None if there are too few."""
        return repeats_in(self.records)

    def choice(self) -> Choice | None:
        """The best of all records; None where nothing fits."""
        found = winner(self.all, self._space.workload, self._objective, self.believed)
        if found is None:
            return None
        return replace(found, certainty=self.certainty(found.record.candidate))

    def _draws(self, among: Sequence[Record]) -> Array:
        """Possible logarithms of their values, by [draw][record]."""
        candidates = [r.candidate for r in among]
        work = np.log([self._work[c] for c in candidates])
        return np.asarray(work - self.predictor.draws(candidates, DRAWS))

    @property
    def finals(self) -> list[Record]:
        """Final rounds that were run."""
        return [
            r
            for r in self.records
            if r.purpose == "final" and r.outcome.verdict != Verdict.SKIPPED
        ]

    def finals_of(self, candidate: Candidate) -> list[Record]:
        return [r for r in self.finals if r.candidate == candidate]

    def needed_step_s(self, candidate: Candidate) -> float | None:
        """Seconds per step, of the longest samples, above which `candidate` is worse."""
        incumbent = self.incumbent
        if incumbent is None or self._objective == "tokens_per_joule":  # seconds do not tell
            return None
        deviation = self._log_cost.deviation[self._place[incumbent.candidate]]
        low = self.believed(incumbent.candidate) * math.exp(-SURE * deviation)
        return self._work[candidate] / low / self._space.workload.padded_share(candidate)

    @property
    def _log_cost(self) -> Belief:
        return self.predictor.log_cost()

    def broken(self, since: int = 0) -> int:
        """Number of probes that hung or crashed, from the record `since` on."""
        return sum(r.outcome.verdict.broke for r in self.records[since:])

    def promising(self, last: int) -> bool:
        return any(r.outcome.verdict == Verdict.OK for r in self.records[-last:])

    def _avoid_fragile(self, record: Record) -> None:
        build = record.candidate.build
        broken: Sequence[Record] = [r for r in self.records if r.outcome.verdict.broke]
        if sum(r.candidate.build == build for r in broken) >= FRAGILE_BREAKS:
            self.opened.avoid(c for c in self._space.candidates if c.build == build)
