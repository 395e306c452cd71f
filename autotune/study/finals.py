"""The finals: the best candidates, measured again, in turn, each time in a fresh group."""

from __future__ import annotations

from autotune.outcome import Record, Verdict
from autotune.runner import Job
from autotune.space.candidate import Candidate
from autotune.study.parts import Parts
from autotune.study.search import RANKING_MICRO_STEPS

FINAL_ROUNDS = 2
FINALS_SHARE = 0.4
"""The finals' part of the budget is never more than this."""
CLOSING_S = 1.0
"""Kept to end the last group and write the result."""


class Finals:
    """Of the `finalists` best. In turn, so that a drift of the machine favours none."""

    def __init__(self, parts: Parts, finalists: int) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._count = finalists

    def run(self) -> None:
        """A final that does not fit after all makes room for the next best.

        Raises `StopRequestedError` where the user wants to end the study.
        """
        parts = self._parts
        while (record := self._next()) is not None:
            parts.go_on()
            left_s = parts.clock.remaining_s() - CLOSING_S
            grad_accum = micro_steps = parts.space.workload.micro_steps(record.candidate)
            if self._final_s(record, micro_steps) > left_s and micro_steps > RANKING_MICRO_STEPS:
                micro_steps = RANKING_MICRO_STEPS
                parts.reporter.note(
                    f"the budget has no time for {grad_accum} micro-steps: {micro_steps} run"
                )
            if self._final_s(record, micro_steps) > left_s:
                parts.reporter.note("the budget leaves no time for more finals")
                return
            if not self._run(record.candidate, grad_accum, micro_steps):
                return

    def needed_s(self) -> float:
        """Seconds kept for the finals that are left to make."""
        finalists = self._finalists()
        left_s = sum(
            self._rounds_left(r.candidate)
            * self._final_s(r, self._parts.space.workload.micro_steps(r.candidate))
            for r in finalists
        )
        if not finalists:
            one_s = self._parts.prober.start_s + self._parts.typical_probe_s()
            left_s = FINAL_ROUNDS * self._count * one_s
        return min(FINALS_SHARE * self._parts.clock.budget_s, left_s + CLOSING_S)

    def _run(self, candidate: Candidate, grad_accum: int, micro_steps: int) -> bool:
        """One round of `candidate`; False where the budget ended in it."""
        parts = self._parts
        parts.reporter.probing("final", candidate)
        job = Job(
            candidate=candidate,
            grad_accum=grad_accum,
            micro_steps=micro_steps,
            rule=parts.prober.rule,
            needed_step_s=None,
            fresh=True,
        )
        predicted = self._ledger.predictor.peak(candidate)
        outcome = parts.prober.measure(job, predicted, parts.clock.budget_s - CLOSING_S)
        number = sum(r.purpose == "final" for r in self._ledger.records)
        final = Record(number, "final", candidate, outcome)
        self._ledger.add(final)
        parts.journal.add_final(final)
        parts.reporter.told(final, self._ledger.incumbent)
        return outcome.verdict != Verdict.SKIPPED

    def _next(self) -> Record | None:
        """The search record of the candidate to measure again next; None after all rounds."""
        left = [r for r in self._finalists() if self._rounds_left(r.candidate)]
        return max(left, key=lambda r: self._rounds_left(r.candidate), default=None)

    def _rounds_left(self, candidate: Candidate) -> int:
        return max(0, FINAL_ROUNDS - len(self._ledger.finals_of(candidate)))

    def _finalists(self) -> list[Record]:
        """Search records of the best candidates that have not failed a final."""
        ranked = sorted(self._ledger.fitting, key=self._ledger.value, reverse=True)
        return [r for r in ranked if not self._failed(r.candidate)][: self._count]

    def _failed(self, candidate: Candidate) -> bool:
        return any(not r.outcome.verdict.fits for r in self._ledger.finals_of(candidate))

    def _final_s(self, record: Record, micro_steps: int) -> float:
        """What a final of `record` takes, as far as the search has shown."""
        rule = self._parts.prober.rule
        part = micro_steps / self._parts.space.workload.micro_steps(record.candidate)
        step_s = record.measured.step.median * part
        least_s = (rule.warmup_steps + rule.timed_steps) * step_s
        return self._parts.prober.start_s + max(least_s, self._parts.typical_probe_s())
