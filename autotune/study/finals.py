"""The finals: the best candidates, measured again, in turn, each time in a fresh group."""

from __future__ import annotations

from autotune.outcome import Record, Verdict
from autotune.runner import Job
from autotune.space.candidate import Candidate
from autotune.study.parts import Parts
from autotune.study.search import RANKING_MICRO_STEPS

FINAL_ROUNDS = 2
"""Of the winner, at least."""
MOST_ROUNDS = 8
"""Of one candidate: what differs by less than so many rounds show is as good."""
SURE = 0.95
"""Probability of being the best, or within `choice.EQUAL` of it, at which finals end."""
FINALS_SHARE = 0.4
"""The finals' part of the budget is never more than this."""
CLOSING_S = 1.0
"""Kept to end the last group and write the result."""


class Finals:
    """Of the `finalists` best, until one of them is surely the best, or the budget ends."""

    def __init__(self, parts: Parts, finalists: int) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._count = finalists
        self.out_of_time = False
        """Whether the budget had no time for a round that was wanted."""

    def run(self) -> int:
        """How many rounds were made.

        A final that does not fit after all makes room for the next best. Raises
        `StopRequestedError` where the user wants to end the study.
        """
        parts, made = self._parts, 0
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
                self.out_of_time = True
                break
            made += 1
            if not self._run(record.candidate, grad_accum, micro_steps):
                break
        return made

    def needed_s(self) -> float:
        """Seconds kept for the finals that are left to make."""
        finalists = self._finalists()
        if self._settled(finalists):
            return CLOSING_S
        left_s = sum(
            max(0, FINAL_ROUNDS - self._rounds(r.candidate))
            * self._final_s(r, self._parts.space.workload.micro_steps(r.candidate))
            for r in finalists
        )
        if not finalists:
            build = self._parts.space.opening[0]
            one_s = self._parts.prober.start_s(build) + self._parts.typical_probe_s()
            left_s = FINAL_ROUNDS * self._count * one_s
        return min(FINALS_SHARE * self._parts.clock.budget_s, left_s + CLOSING_S)

    def _run(self, candidate: Candidate, grad_accum: int, micro_steps: int) -> bool:
        """One round of `candidate`; False where the budget ended in it."""
        parts = self._parts
        until_s = parts.clock.budget_s - CLOSING_S
        parts.reporter.probing("final", candidate, until_s)
        job = Job(
            candidate=candidate,
            grad_accum=grad_accum,
            micro_steps=micro_steps,
            rule=parts.prober.final_rule,
            needed_step_s=None,
            fresh=True,
            mixed=True,
        )
        predicted = self._ledger.predictor.peak(candidate)
        outcome = parts.prober.measure(job, predicted, until_s)
        number = sum(r.purpose == "final" for r in self._ledger.records)
        final = Record(number, "final", candidate, outcome)
        self._ledger.add(final)
        parts.journal.add_final(final)
        parts.reporter.told(final, self._ledger.incumbent)
        return outcome.verdict != Verdict.SKIPPED

    def _next(self) -> Record | None:
        """The search record of the candidate to measure again next; None where it is settled.

        Of the two most likely to be the best, the one that was measured less often ("top-two",
        Russo, Operations Research 2020).
        """
        finalists = self._finalists()
        if not finalists or self._settled(finalists):
            return None
        leader = finalists[0]
        rivals = [] if self._is_sure(leader) else self._rivals(finalists)
        return min([leader, *rivals], key=lambda r: self._rounds(r.candidate))

    def _settled(self, finalists: list[Record]) -> bool:
        if not finalists or self._rounds(finalists[0].candidate) < FINAL_ROUNDS:
            return False
        alone = len(finalists) == 1 or self._rounds(finalists[0].candidate) >= MOST_ROUNDS
        return alone or self._is_sure(finalists[0])

    def _is_sure(self, leader: Record) -> bool:
        certainty = self._ledger.certainty(leader.candidate)
        return certainty is not None and certainty.equal >= SURE

    def _rivals(self, finalists: list[Record]) -> list[Record]:
        """The one that is most likely to be better than the first."""
        certainty = self._ledger.certainty(finalists[0].candidate)
        rival = [r for r in finalists[1:] if certainty and r.candidate == certainty.next]
        return rival or finalists[1:2]

    def _rounds(self, candidate: Candidate) -> int:
        return len(self._ledger.finals_of(candidate))

    def _finalists(self) -> list[Record]:
        return self._ledger.contenders[: self._count]

    def _final_s(self, record: Record, micro_steps: int) -> float:
        """What a final of `record` takes, as far as the search has shown."""
        rule = self._parts.prober.final_rule
        part = micro_steps / self._parts.space.workload.micro_steps(record.candidate)
        step_s = record.measured.step.median * part
        cycle_steps = self._parts.space.workload.cycle_steps(record.candidate, micro_steps)
        least_s = (rule.warmup_steps + rule.timed_steps) * cycle_steps * step_s
        start_s = self._parts.prober.start_s(record.candidate)
        timed_s = rule.sustain_s + rule.timed_least_s
        return start_s + max(least_s, timed_s, self._parts.typical_probe_s())
