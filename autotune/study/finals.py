"""The finals measure the best candidates again, in turn, each time in a fresh group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from functools import partial

from autotune.measure.runner import Job
from autotune.result.folder.past import News
from autotune.result.making import unseen
from autotune.space.candidate import Candidate
from autotune.space.outcome import Purpose, Record, Verdict
from autotune.space.space import Space
from autotune.space.workload import NO_PHASES
from autotune.study.attempts import Probed
from autotune.study.pace import RANKING_MICRO_STEPS
from autotune.study.records import SUSPICIOUS_LOSSES, Records
from autotune.study.slots import Slots
from autotune.study.work import NextWork, Slot, Work

FINAL_ROUNDS = 2
"""The fewest rounds of the winner."""
FIRST_ROUNDS, MOST_ROUNDS = 8, 32
"""The most rounds of one candidate: before the search goes on, and in all."""
VAIN_ROUNDS = 4
"""The fewest rounds of each of the two best before finals may end with a tie."""
SURE = 0.95
"""Finals end at this probability that the leader is the best, or within `choice.EQUAL` of it."""
FINALS_SHARE = 0.4
"""The largest share of the budget for finals."""
PHASES_SHARE = 0.5
"""The largest share of the remaining budget for a launch for a script's phases."""
CLOSING_S = 1.0
"""Seconds to end the last group and write the result."""


class Finals:
    """Rounds of the `finalists` best, until one is surely the best, or the budget ends.

    If the user said how to reach the script's phases, the winner is launched once more for them.
    If they do not fit, the next best comes up. Else the last turn waits for them.
    """

    def __init__(self, space: Space, slots: Slots, records: Records, finalists: int) -> None:
        self._workload = space.workload
        self._has_phases = space.workload.has_phases
        self._waits = False
        self._launched: set[Candidate] = set()
        """Candidates that need no launch for their phases in this process."""
        self._first_build = space.opening[0]
        self._slots, self._clock, self._pace = slots, slots.clock, slots.pace
        self._records = records
        self._ledger = records.ledger
        self._count = finalists
        self._made = 0
        self._made_on: Counter[tuple[Candidate, Slot]] = Counter()
        self._put_offs: Counter[Candidate] = Counter()
        self.unconfirmed: Candidate | None = None
        """The winner of an earlier run that was not confirmed: it comes first."""
        self.out_of_time = False
        """Whether the budget had no time for another round."""
        self.lacked_s = 0.0
        """Seconds of the round for which the budget had no time; 0 if there was time."""
        self.under_way = False
        self._ended = False
        self._turns = 0
        self._had_none = False
        """Whether the last turn ended without a candidate that fits."""

    def turn(self, *, waits: bool = False) -> Generator[NextWork, None, int]:
        """Have the slots make rounds; returns their number.

        A candidate that does not fit makes room for the next best. If it `waits`, the winner is
        launched for unseen phases, for at most as long as the study took before.
        """
        self._waits, self._has_phases = waits, waits or self._has_phases
        self._made, self._ended = 0, False
        self._turns += 1
        self.under_way = True
        yield self._next_work
        self.under_way = False
        finalists = self._finalists()
        self._had_none = not finalists
        if self._made and self._is_in_vain(finalists) and not self._is_sure(finalists[0]):
            rounds = self._needed_rounds(finalists)
            self._records.reporter.note(
                "finals end: repeated rounds differ by more than the best candidates do"
                if rounds > MOST_ROUNDS
                else (
                    f"finals end: the best two are too close; {rounds:.0f} more rounds of each"
                    " would not fit the budget"
                )
            )
        return self._made

    def needed_s(self) -> float:
        """Seconds for the remaining finals; if they are settled, for one more."""
        finalists = self._finalists()
        closing_s = CLOSING_S + (self._phases_s(finalists[0].candidate) if finalists else 0.0)
        if self._had_none and not finalists:
            return closing_s
        settled = self._settled(finalists)
        left = [
            (self._start_s(r), self._steps_s(r, self._workload.micro_steps(r.candidate)))
            for r in finalists[: 1 if settled else None]
            for _ in range(1 if settled else FINAL_ROUNDS - self._rounds(r.candidate))
        ]
        if not finalists:
            start_s = self._pace.start_s(self._first_build)
            probe_s = self._pace.typical_probe_s(self._ledger.fitting)
            left = [(start_s, probe_s)] * (FINAL_ROUNDS * self._count)
        starts_s = sum(start_s for start_s, _ in left) / len(self._slots)
        steps_s = sum(steps_s for _, steps_s in left) / self._slots.timed_at_once
        left_s = max([starts_s + steps_s, *map(sum, left)])
        return min(FINALS_SHARE * self._clock.budget_s, left_s + closing_s)

    def _next_work(self, free: Sequence[Slot]) -> tuple[Slot, Work] | None:
        found, phases = None, True

        def choose(news: News) -> Candidate | None:
            nonlocal found, phases
            self._records.learn(news)
            found = self._next_for_phases(free, FINAL_ROUNDS)
            if not found and not self._ended:
                found, phases = self._next_in_time(free), False
            if not found:
                found, phases = self._next_for_phases(free, 1), True
            return None if found is None else found[1].candidate

        over = self._ended and not self._has_phases
        number = None if over else self._records.journal.claim_final(choose)
        if found is None or number is None:
            return None
        return found[0], self._work(number, *found, phases=phases)

    def _next_for_phases(self, free: Sequence[Slot], rounds: int) -> tuple[Slot, Record] | None:
        """The winner by `rounds` rounds, if it was not launched for its phases yet."""
        if not self._has_phases or self._slots.running or self._records.finals:
            return None
        choice = self._ledger.choice()
        if choice is None:
            return None
        made = self._rounds(choice.record.candidate)
        if self._count and (choice.record.purpose != "final" or made < rounds):
            return None
        if self._waits and not unseen(choice.record.measured.phases):
            return None
        needed_s = self._phases_s(choice.record.candidate)
        if not needed_s:
            return None
        if needed_s > self._clock.remaining_s() - CLOSING_S:
            self._launched.add(choice.record.candidate)
            if not self._waits:
                self._records.reporter.note("the budget leaves no time to evaluate and save")
            return None
        return free[0], choice.record

    def _phases_s(self, candidate: Candidate) -> float:
        """Seconds to keep for its launch for phases; 0 if none will come."""
        done = {r.candidate for r in self._ledger.records
                if r.purpose == "phases" and not r.outcome.put_off}  # fmt: skip
        if candidate in self._launched | done or not self._has_phases:
            return 0.0
        return self._pace.start_s(candidate) + self._pace.typical_probe_s(self._ledger.fitting)

    def _next_in_time(self, free: Sequence[Slot]) -> tuple[Slot, Record] | None:
        """`_next`, if the budget has time for it."""
        found = self._next(free)
        if found is None:
            return None
        record = found[1]
        whole = self._workload.micro_steps(record.candidate)
        if self._slots.in_turns and self._slots.running:
            return found if self._has_time(record, whole) else None  # later, there may be
        if self._has_time(record, self._micro_steps(record)):
            return found
        if not self.out_of_time:
            more = " more" if self._ledger.finals else ""
            self.lacked_s = self.round_s(record)
            left_s = self._left_s(record, self._micro_steps(record))
            self._records.reporter.note(
                f"the budget leaves no time for{more} finals: one takes"
                f" {math.ceil(self.lacked_s)} s, {max(0, int(left_s))} s are left for it"
            )
        self.out_of_time = self._ended = True
        return None

    def round_s(self, record: Record) -> float:
        """Seconds of one final of `record`."""
        return self._start_s(record) + self._steps_s(record, self._micro_steps(record))

    def _micro_steps(self, record: Record) -> int:
        """The whole schedule; or the part that the search runs, if there is no time for more."""
        whole = self._workload.micro_steps(record.candidate)
        return whole if self._has_time(record, whole) else min(whole, RANKING_MICRO_STEPS)

    def _has_time(self, record: Record, micro_steps: int) -> bool:
        needed_s = self._start_s(record) + self._steps_s(record, micro_steps)
        return needed_s <= self._left_s(record, micro_steps)

    def _left_s(self, record: Record, micro_steps: int) -> float:
        """Seconds that the budget leaves for a final of `record`."""
        kept_s = CLOSING_S + self._slots.queue_s(self._steps_s(record, micro_steps))
        if self._rounds(record.candidate):
            kept_s += self._phases_s(record.candidate)
        return self._clock.remaining_s() - kept_s

    def _work(self, number: int, slot: Slot, record: Record, *, phases: bool) -> Work:
        """Round `number` in `slot`, of the candidate of `record`, or its launch for `phases`."""
        candidate = record.candidate
        grad_accum = self._workload.micro_steps(candidate)
        micro_steps = self._micro_steps(record)
        if micro_steps < grad_accum:
            self._records.reporter.note(
                f"the budget is too short for {grad_accum} micro-steps: running {micro_steps}"
            )
        until_s = self._clock.budget_s - CLOSING_S
        purpose: Purpose = "phases" if phases else "final"
        if phases:
            least_s = 2 * self._phases_s(candidate)
            share_s = max(least_s, PHASES_SHARE * self._clock.remaining_s())
            if self._waits:
                share_s = max(least_s, min(share_s, self._clock.elapsed_s()))
                self._records.reporter.note(
                    f"waits until the script evaluates and saves, at most {share_s:.0f} s;"
                    f" --phase-args reaches that sooner, --phase-args {NO_PHASES} leaves it out"
                )
            until_s = min(until_s, self._clock.elapsed_s() + share_s)
            self._launched.add(candidate)
        else:
            self._made += 1
            self._made_on[candidate, slot] += 1
        self._records.reporter.probing(purpose, candidate, until_s, slot.number)
        job = Job(
            candidate=candidate,
            grad_accum=grad_accum,
            micro_steps=micro_steps,
            rule=self._pace.final_rule,
            needed_step_s=None,
            fresh=True,
            mixed=True,
            phases=phases,
            budget="its share of the budget" if phases else Job.budget,
        )
        return Work(
            job=job,
            predicted=self._ledger.predictor.peak(candidate),
            until_s=until_s,
            told=partial(self._told, number, purpose, candidate),
        )

    def _told(self, number: int, purpose: Purpose, candidate: Candidate, probed: Probed) -> None:
        self._records.add_final(Record(number, purpose, candidate, probed.outcome))
        if purpose == "phases":
            return
        self._put_offs[candidate] += probed.suspect
        if probed.outcome.verdict == Verdict.SKIPPED and not probed.put_off:
            self.out_of_time = self._ended = True  # the budget ended in this round

    def _next(self, free: Sequence[Slot]) -> tuple[Slot, Record] | None:
        """A free slot and the search record to measure there; None if all are settled or run.

        The two likeliest winners come first, and of them the one with fewer rounds. Source:
        "top-two", Russo, Operations Research 2020. Several slots run several rounds at once. The
        rounds of one candidate rotate over the slots.
        """
        if (left := self._left_unconfirmed()) is not None:
            return min(free, key=lambda slot: self._made_on[left.candidate, slot]), left
        finalists = self._finalists()
        if not finalists or self._settled(finalists):
            return None
        leader = finalists[0]
        sure = self._is_sure(leader)
        running = Counter([*self._slots.running, *self._records.finals])
        owed = [r for r in self._owed(finalists) if not running[r.candidate]]
        first = [leader, *owed, *([] if sure else self._rivals(finalists))]
        later = [] if sure else [r for r in finalists if r not in first]
        for among in (first, later if running else []):
            able = [r for r in among if running[r.candidate] < FINAL_ROUNDS]
            if able:
                return min(
                    ((slot, record) for record in able for slot in free),
                    key=lambda pair: self._order(pair[0], pair[1], running),
                )
        return None

    def _left_unconfirmed(self) -> Record | None:
        """The search record of `unconfirmed`, until it had its rounds or is confirmed."""
        candidate = self.unconfirmed
        made = sum(n for (each, _), n in self._made_on.items() if each == candidate)
        if candidate is None or made >= FINAL_ROUNDS:
            return None
        if self._rounds(candidate) >= FINAL_ROUNDS and self._ledger.agrees(candidate):
            return None
        return next((r for r in self._ledger.contenders if r.candidate == candidate), None)

    def _order(self, slot: Slot, record: Record, running: Counter[Candidate]) -> tuple[int, int]:
        """Fewer rounds come first, then fewer rounds in this slot."""
        candidate = record.candidate
        here = self._made_on[candidate, slot] if len(self._slots) > 1 else 0
        return self._rounds(candidate) + running[candidate], here

    def _settled(self, finalists: list[Record]) -> bool:
        if not finalists or self._rounds(finalists[0].candidate) < FINAL_ROUNDS:
            return False
        if self._owed(finalists) or self._differ(finalists[0]):
            return False
        most = MOST_ROUNDS if self._turns > 1 else FIRST_ROUNDS
        alone = len(finalists) == 1 or self._rounds(finalists[0].candidate) >= most
        return alone or self._is_sure(finalists[0]) or self._is_in_vain(finalists)

    def _owed(self, finalists: list[Record]) -> list[Record]:
        """The fastest candidate of the search, if it had no final yet."""
        fastest = max(finalists, key=self._ledger.searched, default=None)
        return [] if fastest is None or self._rounds(fastest.candidate) else [fastest]

    def _differ(self, leader: Record) -> bool:
        """Whether more finals may show the speed of `leader`, whose measurements differ."""
        made = self._rounds(leader.candidate)
        return made < VAIN_ROUNDS and not self._ledger.agrees(leader.candidate)

    def _is_in_vain(self, finalists: list[Record]) -> bool:
        """Whether the budget is too short to tell the two best apart."""
        repeats = self._ledger.repeats
        if len(finalists) < 2 or repeats is None or not repeats.noisy:
            return False
        pair = [finalists[0], *self._rivals(finalists)]
        made = min(self._rounds(r.candidate) for r in pair)
        if made < VAIN_ROUNDS:
            return False
        micro_steps = [self._workload.micro_steps(r.candidate) for r in pair]
        round_s = sum(
            self._start_s(r) + self._steps_s(r, steps)
            for r, steps in zip(pair, micro_steps, strict=True)
        )
        left = len(self._slots) * self._clock.remaining_s() / round_s
        return self._needed_rounds(finalists) > min(made + left, MOST_ROUNDS)

    def _needed_rounds(self, finalists: list[Record]) -> float:
        """Rounds of each of the two best that tell them apart."""
        leader, rival, *_ = [finalists[0], *self._rivals(finalists)]
        return self._ledger.rounds_to_tell(leader.candidate, rival.candidate)

    def _is_sure(self, leader: Record) -> bool:
        certainty = self._ledger.certainty(leader.candidate)
        return certainty is not None and certainty.equal >= SURE

    def _rivals(self, finalists: list[Record]) -> list[Record]:
        """The candidate that is most likely better than the leader."""
        certainty = self._ledger.certainty(finalists[0].candidate)
        rival = [r for r in finalists[1:] if certainty and r.candidate == certainty.next]
        return rival or finalists[1:2]

    def _rounds(self, candidate: Candidate) -> int:
        return len(self._ledger.finals_of(candidate))

    def _finalists(self) -> list[Record]:
        """The best contenders, and the fastest of the search in place of the last of several.
        Candidates that lost node after node are left out: they may be the cause."""
        able = [
            r for r in self._ledger.contenders if self._put_offs[r.candidate] < SUSPICIOUS_LOSSES
        ]
        fastest = max(able, key=self._ledger.searched, default=None)
        if self._count < 2 or fastest is None or fastest in able[: self._count]:
            return able[: self._count]
        return [*able[: self._count - 1], fastest]

    def _start_s(self, record: Record) -> float:
        return self._pace.start_s(record.candidate)

    def _steps_s(self, record: Record, micro_steps: int) -> float:
        """Seconds of the steps of a final of `record`, by the measurements of the search."""
        rule = self._pace.final_rule
        part = micro_steps / self._workload.micro_steps(record.candidate)
        step_s = record.measured.step.median * part
        cycle_steps = self._workload.cycle_steps(record.candidate, micro_steps)
        least_s = (rule.warmup_steps + rule.timed_steps) * cycle_steps * step_s
        timed_s = rule.sustain_s + max(rule.timed_least_s, rule.energy_s)
        return max(least_s, timed_s, self._pace.typical_probe_s(self._ledger.fitting))
