"""The search: ask for candidates, probe them, tell their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from autotune.measure.runner import Job
from autotune.result.earlier import Earlier
from autotune.result.folder.ask import Ask, Costs
from autotune.result.folder.journal import Journal
from autotune.result.folder.past import News
from autotune.result.folder.sampler import Adapter, Asked, Sampler
from autotune.show.report.text import minutes
from autotune.space.candidate import Build, Candidate
from autotune.space.options import Options
from autotune.space.outcome import Measurement, Outcome, Record, Verdict
from autotune.space.space import Space
from autotune.study import samplers
from autotune.study.attempts import Probed
from autotune.study.finals import Finals
from autotune.study.pace import RANKING_MICRO_STEPS, Pace
from autotune.study.predict.predictor import Predictor
from autotune.study.records import SUSPICIOUS_LOSSES, Records
from autotune.study.samplers.open_candidates import OpenCandidates
from autotune.study.slots import Slots
from autotune.study.work import NextWork, Slot, Work

LOSABLE = 0.08
"""Share of the probes that may be lost to candidates that do not fit. One probe always may."""
LIKELY, EVEN, DARING = 0.8, 0.5, 0.3
"""The least chance of fitting that is worth a probe: after too many losses, in the search, and
after finals, which leave time for uncertain candidates."""
LOSABLE_RECORDED, DARING_RECORDED = 0.16, 0.2
"""The same of runs that others recorded: the chance that is enough while so few are lost."""
GUESSES = 3
"""So many recorded runs that do not fit are tried before the smallest comes next."""
HOPELESS_STARTS = 3
"""The study ends if so many probes in a row break before the first measurement."""

FEW, ENOUGH = 10, 20
"""Fewer launches of a script are hardly a search; so many are enough for one."""
_SPENT = "its part of the budget is spent"


class _Round:
    """Trials that the study asked for together."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.numbers = [each.trial.number for each in asked]
        self.waiting = list(asked)


class Search:
    """Runs until its part of the budget is spent, or nothing more is worth a probe."""

    def __init__(
        self,
        space: Space,
        slots: Slots,
        records: Records,
        *,
        finals: Finals,
        sampler: Sampler,
        trials: int | None,
    ) -> None:
        """`trials` bounds the probes. The search leaves `finals` their part of the budget."""
        self._space = space
        self._slots, self._clock, self._pace = slots, slots.clock, slots.pace
        self._records = records
        self._ledger = records.ledger
        self._finals = finals
        self._sampler = sampler
        self._trials = trials
        self._alone: tuple[Slot, Work, Measurement] | None = None
        """A measurement that was made while nothing else ran."""
        self._earlier = 0
        self._again: list[Candidate] = []
        self._rounds: dict[Slot, _Round] = {}
        self._why = ""
        self._runs = 0
        """Turns of the search; finals come between them."""
        self._put_offs: Counter[Candidate] = Counter()

    def restore(self, suspects: set[Candidate], interrupted: Sequence[Candidate]) -> None:
        """Go on from the records of an earlier run, which the ledger has.

        The `interrupted` candidates come first; `suspects`, in whose probes the study died, last.
        """
        self._earlier = len(self._ledger.records)
        self._ledger.opened.avoid(suspects)
        self._again = [c for c in interrupted if not self._ledger.opened.avoids(c)]

    @property
    def out_of_time(self) -> bool:
        """Whether the budget ended the last turn."""
        return self._why == _SPENT

    def launch_s(self) -> float:
        """Seconds of one launch of a script, by what was measured."""
        return self._pace.start_s(self._space.opening[0]) + self._typical_probe_s

    @property
    def enough(self) -> int:
        """Launches of a script that make a search."""
        return min(ENOUGH, len(self._space.candidates))

    def turn(self) -> Generator[NextWork, None, int]:
        """Have the slots make probes; how many were made."""
        self._runs += 1
        before, slots, neighbours = self._ledger.probed, self._slots, self._slots.neighbours
        if neighbours is not None and not neighbours.compared and len(slots) > 1:
            if self._alone is not None and self._alone[0] not in slots:
                self._alone = None
            yield self._next_alone
            alone = self._alone
            if alone is not None and alone[0] in slots and self._why_stop() is None:
                yield from neighbours.compare(list(slots), *alone)
        yield self._next
        made = self._ledger.probed - before
        if made:
            self._records.reporter.note(f"search ended: {self._why}")
        return made

    def _next(self, free: Sequence[Slot]) -> tuple[Slot, Work] | None:
        while True:
            slot = next((slot for slot in free if self._left(slot)), free[0])
            if self._waits():
                return None
            if (why := self._why_stop()) is not None:
                for each in self._rounds:
                    self._put_off_round(each, "the search ended before its turn")
            elif not self._left(slot):
                why = self._why_enough(slot)
            if why is not None:
                self._why = why
                return None
            if not self._left(slot):
                self._rounds[slot] = _Round(self._ask_round(slot))
            if not self._left(slot):
                continue  # other processes were faster
            asked = self._rounds[slot].waiting.pop(0)
            witness = self._ledger.witness(asked.candidate)
            if self._ledger.opened.avoids(asked.candidate):
                self._put_off(asked, "the last probes of its build broke")
            elif witness is not None:
                name = self._space.name(witness.candidate)
                self._records.add_trial(
                    asked, witness.skipped(asked.candidate, asked.trial.number, name=name)
                )
            else:
                return slot, self._work(slot, asked)

    def _next_alone(self, free: Sequence[Slot]) -> tuple[Slot, Work] | None:
        """One probe after the other, until one was measured."""
        if self._slots.running or self._alone or (found := self._next(free)) is None:
            return None
        slot, work = found

        def told(probed: Probed) -> None:
            work.told(probed)
            measured = probed.outcome.measurement
            if probed.outcome.verdict == Verdict.OK and measured is not None:
                self._alone = (slot, work, measured)

        return slot, replace(work, told=told)

    def _left(self, slot: Slot) -> list[Asked]:
        """The trials of its round that are not probed yet."""
        return self._rounds[slot].waiting if slot in self._rounds else []

    def _why_enough(self, slot: Slot) -> str | None:
        """Why no candidate is worth a probe; None while one may be."""
        if not self._ledger.opened.has():
            return "every candidate of the space was tried"
        return self._sampler.why_stop(self._ask(slot))

    def _why_stop(self) -> str | None:
        """Why no further probe is run; None while there may be one."""
        if self._trials is not None and self._begun() >= self._trials:
            return f"--trials {self._trials} probes were run"
        if not self._has_time(self._typical_probe_s + self._start_s):
            return _SPENT
        broken = self._ledger.broken()
        if broken == self._ledger.probed and self._ledger.broken(self._earlier) >= HOPELESS_STARTS:
            return f"the first {broken} probes all broke"
        return None

    @property
    def _keeps_finals(self) -> bool:
        """Whether some of the budget is kept for finals; not after finals without a contender."""
        return self._runs == 1 or bool(self._ledger.contenders)

    @property
    def _typical_probe_s(self) -> float:
        return self._pace.typical_probe_s(self._ledger.fitting)

    @property
    def _start_s(self) -> float:
        """Seconds to start a group for the next probe, once a measurement showed the need."""
        alive = any(slot.runner.live_build is not None for slot in self._slots)
        waiting = alive or self._slots.running or not self._ledger.fitting
        return 0.0 if waiting else self._pace.start_s(self._space.opening[0])

    def _has_time(self, probe_s: float) -> bool:
        return self._clock.remaining_s() >= self._finals.needed_s() + probe_s

    def _waits(self) -> bool:
        """Whether there is time for a probe, but not beside those that run."""
        probe_s = self._typical_probe_s
        queue_s = self._slots.queue_s(probe_s)
        return queue_s > 0 and self._has_time(probe_s) and not self._has_time(probe_s + queue_s)

    def _begun(self) -> int:
        """Number of probes that ended or run, other processes' included."""
        return self._ledger.probed + len(self._slots.running) + len(self._records.running)

    def _pending(self) -> list[Candidate]:
        """Candidates that run or wait for their probe, other processes' included."""
        waiting = [asked.candidate for each in self._rounds.values() for asked in each.waiting]
        return [*self._slots.running, *waiting, *self._records.running]

    def _ask_after(
        self,
        slot: Slot,
        build: Build | None,
        exactly: Candidate | None,
        asked: Sequence[Candidate],
        news: News,
    ) -> Ask | None:
        """The question after the `news`; None if they left nothing to ask for."""
        self._records.learn(news)
        opened = self._ledger.opened
        gone = exactly is not None and exactly not in opened
        if gone or not opened.has(build if asked else None):
            return None
        if self._trials is not None and self._begun() >= self._trials:
            return None
        return self._ask(slot, build, exactly, asked)

    def _ask(
        self,
        slot: Slot,
        build: Build | None = None,
        exactly: Candidate | None = None,
        asked: Sequence[Candidate] = (),
    ) -> Ask:
        ledger, pending = self._ledger, [*self._pending(), *asked]
        # Candidates of the live build save a group's start.
        costs = Costs(
            live_build=slot.runner.live_build,
            start_s=self._pace.start_s,
            compile_s=self._pace.compile_s,
            probe_s=self._typical_probe_s,
        )
        return Ask(
            allowed=ledger.opened.places(build),
            pending=tuple(pending),
            fitting=tuple(r.candidate for r in ledger.fitting),
            costs=costs,
            least_chance=self._least_chance(),
            exactly=exactly,
        )

    def _least_chance(self) -> float:
        """The chance of fitting with which a candidate is worth a probe now."""
        ledger, running = self._ledger, self._slots.running
        # Finals of an earlier run, or of another process, left this one no time.
        finals = ledger.finals if self._runs > 1 else []
        lost_finals = sum(r.outcome.verdict.bounds_memory for r in finals)
        # What runs may be lost, too.
        lost = ledger.lost + ledger.predictor.expected_lost(running)
        least = least_chance(ledger.probed + len(running), lost, len(finals), lost_finals)
        if not self._space.workload.recorded:
            return least
        # Without peaks, only candidates near the limit tell where it is.
        few = lost + 1 <= LOSABLE_RECORDED * (ledger.probed + len(running) + 1)
        return DARING_RECORDED if few else min(least, EVEN)

    def _ask_round(self, slot: Slot) -> list[Asked]:
        """Some open candidates of one build for `slot`, ascending in tokens.

        Some samplers do not know the cost of starting a group. They are asked for several
        candidates at once. The live group stays until its probes have paid for its start, or its
        whole last round was too slow. Then come the builds of the opening, then those that the
        sampler chooses. While nothing fits, or a script fails, the smallest open candidate comes
        next, alone. A resumed study begins with the interrupted rounds.
        """
        size, journal, opened = self._sampler.round, self._records.journal, self._ledger.opened
        ask = partial(self._ask_after, slot)
        self._again = [c for c in self._again if c in opened]
        if self._again:
            again = [c for c in self._again if c.build == self._again[0].build][:size]
            begun = journal.past.round_begun
            asked = ask_round(journal, opened, ask, len(again) if begun else size, first=again)
            known = {each.candidate for each in asked}
            self._again = [c for c in self._again if c not in known]
            return asked
        if (self._ledger.nothing_fits_yet and not self._guesses) or self._only_failed:
            usable = (c for c in opened if not opened.avoids(c))
            smallest = min(usable, key=self._size)
            return ask_round(journal, opened, ask, 1, first=[smallest])
        build = self._build_of_round(slot, size) if size > 1 else None
        pending = len(self._pending())
        left = size if self._trials is None else self._trials - self._ledger.probed - pending
        return ask_round(journal, opened, ask, max(1, min(size, left)), build=build)

    def _size(self, candidate: Candidate) -> tuple[int, int]:
        """Sorts candidates by sure needs; runs of others, which differ more, by expectation."""
        if self._space.workload.recorded:
            return self._ledger.predictor.peak(candidate).bytes, 0
        return candidate.depth, candidate.tokens

    @property
    def _guesses(self) -> bool:
        """Whether to go by chances though nothing fits yet: small recorded runs are slow."""
        return self._space.workload.recorded and self._ledger.lost < GUESSES

    @property
    def _only_failed(self) -> bool:
        """Whether a script failed, and nothing of it was measured."""
        of_script = self._space.workload.of_script
        return of_script and self._ledger.broken() > 0 and not self._ledger.contenders

    def _build_of_round(self, slot: Slot, size: int) -> Build | None:
        """The build of the next round; None leaves the choice to the sampler."""
        live = slot.runner.live_build
        if slot.prober.owed and self._ledger.promising(size) and live is not None:
            return live
        seen = {record.candidate.build for record in self._ledger.records}
        seen |= {candidate.build for candidate in self._pending()}
        opened = self._ledger.opened
        unseen = (b for b in self._space.opening if b not in seen and opened.has(b))
        return next(unseen, None)

    def _work(self, slot: Slot, asked: Asked) -> Work:
        candidate, journal = asked.candidate, self._records.journal
        until_s = self._clock.budget_s - self._finals.needed_s()
        self._records.reporter.probing("search", candidate, until_s, slot.number)
        numbers = self._rounds[slot].numbers
        journal.begin_probe(asked.trial, self._clock.elapsed_s(), numbers)
        grad_accum = self._space.workload.micro_steps(candidate)
        job = Job(
            candidate=candidate,
            grad_accum=grad_accum,
            micro_steps=min(grad_accum, RANKING_MICRO_STEPS),
            rule=self._pace.rule,
            needed_step_s=self._ledger.needed_step_s(candidate),
            fresh=False,
            budget="the search's part of the budget" if self._keeps_finals else "the budget",
        )
        return Work(
            job=job,
            predicted=self._ledger.predictor.peak(candidate),
            until_s=until_s,
            told=partial(self._probed, slot, asked),
            excused=partial(journal.excuse, asked.trial),
        )

    def _probed(self, slot: Slot, asked: Asked, probed: Probed) -> None:
        candidate = asked.candidate
        if probed.put_off:
            self._put_offs[candidate] += probed.suspect
            if self._put_offs[candidate] == SUSPICIOUS_LOSSES:  # it may have been the cause
                self._ledger.opened.avoid([candidate])
            if self._put_offs[candidate] <= SUSPICIOUS_LOSSES:
                self._ledger.opened.reopen(candidate)
        self._records.add_trial(
            asked, Record(asked.trial.number, "search", candidate, probed.outcome)
        )
        fitting = self._ledger.fitting
        if self._space.workload.of_script and [r.candidate for r in fitting] == [candidate]:
            self._tell_pace()
        if probed.gone:
            self._put_off_round(slot, probed.gone)

    def _tell_pace(self) -> None:
        """Note after the first launch if the budget has time for few."""
        launch_s, budget_s = self.launch_s(), self._clock.budget_s
        few = max(1, round(budget_s / launch_s))
        if few >= min(FEW, self.enough):
            return
        every = len(self._space.candidates)
        self._records.reporter.note(
            f"a launch takes about {launch_s:.0f} s: {minutes(budget_s)} is enough for about"
            f" {few} of {every} candidates"
        )

    def _put_off_round(self, slot: Slot, why: str) -> None:
        while waiting := self._left(slot):
            self._put_off(waiting.pop(0), why)

    def _put_off(self, asked: Asked, why: str) -> None:
        """Leave a candidate for later: it may be proposed again."""
        self._ledger.opened.reopen(asked.candidate)
        started_s = self._clock.elapsed_s()
        outcome = Outcome(verdict=Verdict.SKIPPED, started_s=started_s, reason=why)
        self._records.add_trial(
            asked, Record(asked.trial.number, "search", asked.candidate, outcome)
        )


def least_chance(probes: int, lost: float, finals: int, lost_finals: int) -> float:
    """The least chance of fitting that is worth a probe, after so many probes and finals."""
    if finals and lost + lost_finals + 1 <= LOSABLE * (probes + finals + 1):
        return DARING
    return EVEN if lost + 1 <= max(1.0, LOSABLE * (probes + 1)) else LIKELY


AskFor = Callable[[Build | None, Candidate | None, Sequence[Candidate], News], Ask | None]
"""Makes the question to a sampler; None if nothing is left to ask for."""


def ask_round(
    journal: Journal,
    opened: OpenCandidates,
    ask_for: AskFor,
    size: int,
    *,
    build: Build | None = None,
    first: Sequence[Candidate] = (),
) -> list[Asked]:
    """At most `size` open candidates of one build, ascending in tokens, and their trials.

    Those in `first` come before proposals of the sampler. Other processes may have taken all.
    """
    asked: list[Asked] = []
    while not asked or (len(asked) < size and opened.has(asked[0].candidate.build)):
        exactly = first[len(asked)] if len(asked) < len(first) else None
        pending = [each.candidate for each in asked]
        found = journal.ask(partial(ask_for, build, exactly, pending))
        if found is None:
            break
        asked.append(found)
        build = asked[-1].candidate.build
        opened.close(asked[-1].candidate)
    return sorted(asked, key=lambda each: each.candidate.tokens)


def first_candidate(
    options: Options, space: Space, device_kind: str, earlier: Sequence[Earlier] = ()
) -> Candidate:
    """What a study with these options would probe first. Touches no device and no disk."""
    predictor = Predictor(space, device_kind, earlier, objective=options.search.objective)
    sampler = samplers.make(
        options.search.sampler, space, predictor, options.search.objective, options.search.seed
    )
    journal, opened = Journal.in_memory(space, options.search.objective), OpenCandidates(space)
    journal.use(Adapter(space, sampler))

    pace = Pace(space.workload, device_kind, options)
    costs = Costs(start_s=pace.start_s, compile_s=pace.compile_s, probe_s=pace.rule.timed_limit_s)

    def ask_for(
        build: Build | None, exactly: object, pending: Sequence[Candidate], news: News
    ) -> Ask:
        return Ask(allowed=opened.places(build), pending=tuple(pending), costs=costs)

    size = (
        sampler.round
        if options.search.trials is None
        else min(sampler.round, options.search.trials)
    )
    build = space.opening[0] if sampler.round > 1 else None
    return ask_round(journal, opened, ask_for, size, build=build)[0].candidate
