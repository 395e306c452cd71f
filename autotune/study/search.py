"""The search: ask for candidates, probe them, tell what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune import samplers
from autotune.folder.journal import Journal
from autotune.options import Options
from autotune.outcome import Outcome, Record, Verdict
from autotune.predict.earlier import Earlier
from autotune.predict.predictor import Predictor
from autotune.runner import Job, Runner, StopRequestedError
from autotune.samplers.ask import Ask, Costs
from autotune.samplers.open_candidates import OpenCandidates
from autotune.samplers.sampler import Adapter, Asked, Sampler
from autotune.space.candidate import Build, Candidate
from autotune.space.space import Space
from autotune.study.ledger import Ledger
from autotune.study.parts import Parts

LOSABLE = 0.08
"""Of the probes, that may be lost on candidates that may well not fit; one always may."""
RANKING_MICRO_STEPS = 2
"""Micro-steps of a longer schedule that the search runs; finals run it whole."""
HOPELESS_STARTS = 3
"""So many probes in a row that break before anything was measured end the study."""


class Search:
    """Runs until its part of the budget is spent, or nothing more is worth a probe."""

    def __init__(
        self,
        parts: Parts,
        *,
        sampler: Sampler,
        runner: Runner,
        trials: int | None,
        finals_s: Callable[[], float],
        publish: Callable[[Ledger], object],
    ) -> None:
        """`trials` bounds the probes; `finals_s` is what of the budget is not the search's."""
        self._parts = parts
        self._sampler = sampler
        self._runner = runner
        self._trials = trials
        self._finals_s = finals_s
        self._publish = publish
        self._ledger = parts.ledger
        self._earlier = 0
        self._again: list[Candidate] = []

    def restore(self, suspects: set[Candidate], interrupted: Sequence[Candidate]) -> None:
        """Go on from the records of an earlier run, which the ledger has.

        What was `interrupted` comes first; `suspects`, in whose probes the study died, come last.
        """
        self._earlier = len(self._ledger.records)
        self._ledger.opened.avoid(suspects)
        self._again = [c for c in interrupted if not self._ledger.opened.avoids(c)]

    def run(self) -> int:
        """How many probes were made. Raises `StopRequestedError` where the user ends the study."""
        before = self._ledger.probed
        while (why := self._why_stop() or self._why_enough()) is None:
            asked = self._ask_round()
            numbers = [each.trial.number for each in asked]
            for each in asked:
                if self._why_stop() is not None:
                    record = self._put_off(each, "the search ended before its turn")
                elif self._ledger.opened.avoids(each.candidate):
                    record = self._put_off(each, "the last probes of its build broke")
                else:
                    record = self._probe(each, numbers)
                self._tell(each, record)
        made = self._ledger.probed - before
        if made:
            self._parts.reporter.note(f"search ended: {why}")
        return made

    def _why_enough(self) -> str | None:
        """Why no candidate is worth a probe; None while one may be."""
        if not self._ledger.opened.has():
            return "every candidate of the space was tried"
        return self._sampler.why_stop(self._ask())

    def _why_stop(self) -> str | None:
        """Why no further probe is run; None while there may be one."""
        self._parts.go_on()
        if self._trials is not None and self._ledger.probed >= self._trials:
            return f"--trials {self._trials} probes were run"
        if self._parts.clock.remaining_s() < self._finals_s() + self._parts.typical_probe_s():
            return "its part of the budget is spent"
        broken = self._ledger.broken()
        if broken == self._ledger.probed and self._ledger.broken(self._earlier) >= HOPELESS_STARTS:
            return f"the first {broken} probes all broke"
        return None

    def _ask(
        self,
        build: Build | None = None,
        exactly: Candidate | None = None,
        pending: Sequence[Candidate] = (),
    ) -> Ask:
        # Candidates of the live build are the cheaper by a group's start.
        costs = Costs(
            live_build=self._runner.live_build,
            start_s=self._parts.prober.start_s,
            compile_s=self._parts.prober.compile_s,
            probe_s=self._parts.typical_probe_s(),
        )
        return Ask(
            allowed=self._ledger.opened.places(build),
            pending=tuple(pending),
            fitting=tuple(r.candidate for r in self._ledger.fitting),
            costs=costs,
            daring=self._ledger.lost + 1 <= max(1.0, LOSABLE * (self._ledger.probed + 1)),
            exactly=exactly,
        )

    def _ask_round(self) -> list[Asked]:
        """Some open candidates of one build, ascending in tokens.

        A sampler that knows nothing of what a group's start costs is asked for several at once:
        the live group is kept until its probes have paid for it, unless all of its last round
        were too slow. Then come builds of the opening, so that the sampler has seen every value
        of their axes, and then the sampler chooses. While nothing has fitted, the smallest open
        candidate comes next, alone. A resumed study begins with the round that was interrupted.
        """
        size, journal, opened = self._sampler.round, self._parts.journal, self._ledger.opened
        if self._again:
            again = self._again
            begun = journal.past.round_begun
            asked = ask_round(
                journal, opened, self._ask, len(again) if begun else size, first=again
            )
            self._again = again[len(asked) :]
            return asked
        if self._ledger.nothing_fits_yet:
            usable = (c for c in opened if not opened.avoids(c))
            smallest = min(usable, key=lambda c: (c.depth, c.tokens))
            return ask_round(journal, opened, self._ask, 1, first=[smallest])
        build = self._build_of_round(size) if size > 1 else None
        left = size if self._trials is None else self._trials - self._ledger.probed
        return ask_round(journal, opened, self._ask, min(size, left), build=build)

    def _build_of_round(self, size: int) -> Build | None:
        """The build that the next round is to stay in; None leaves it to the sampler."""
        live = self._runner.live_build
        if self._parts.prober.owed and self._ledger.promising(size) and live is not None:
            return live
        seen = {record.candidate.build for record in self._ledger.records}
        opened = self._ledger.opened
        unseen = (b for b in self._parts.space.opening if b not in seen and opened.has(b))
        return next(unseen, None)

    def _probe(self, asked: Asked, numbers: Sequence[int]) -> Record:
        """Measure what was asked for, unless what is known already says how that would end.

        `numbers` are those of its round's trials.
        """
        candidate, parts = asked.candidate, self._parts
        witness = self._ledger.witness(candidate)
        if witness is not None:
            return witness.skipped(candidate, asked.trial.number)
        until_s = parts.clock.budget_s - self._finals_s()
        parts.reporter.probing("search", candidate, until_s)
        parts.journal.begin_probe(asked.trial, parts.clock.elapsed_s(), numbers)
        grad_accum = parts.space.workload.micro_steps(candidate)
        job = Job(
            candidate=candidate,
            grad_accum=grad_accum,
            micro_steps=min(grad_accum, RANKING_MICRO_STEPS),
            rule=parts.prober.rule,
            needed_step_s=self._ledger.needed_step_s(candidate),
            fresh=False,
        )
        predicted = self._ledger.predictor.peak(candidate)
        try:
            outcome = parts.prober.measure(job, predicted, until_s)
        except StopRequestedError:
            parts.journal.excuse(asked.trial)
            raise
        return Record(asked.trial.number, "search", candidate, outcome)

    def _put_off(self, asked: Asked, why: str) -> Record:
        """Leave a candidate for later: it may be proposed again."""
        self._ledger.opened.reopen(asked.candidate)
        started_s = self._parts.clock.elapsed_s()
        outcome = Outcome(verdict=Verdict.SKIPPED, started_s=started_s, reason=why)
        return Record(asked.trial.number, "search", asked.candidate, outcome)

    def _tell(self, asked: Asked, record: Record) -> None:
        parts, ledger = self._parts, self._ledger
        value = ledger.value(record) if record.outcome.measurement is not None else None
        parts.journal.tell(asked.trial, record, value, parts.space.limits)
        before = ledger.incumbent
        ledger.add(record)
        if ledger.incumbent is not before:
            self._publish(ledger)
        parts.reporter.told(record, ledger.incumbent)
        if skipped := ledger.settle(record):
            parts.journal.add_skipped(skipped)
            parts.reporter.note(f"skipped {len(skipped)}: {skipped[0].outcome.reason}")


AskFor = Callable[[Build | None, Candidate | None, Sequence[Candidate]], Ask]
"""What to tell a sampler: of which build, of which candidate, and what is asked for already."""


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

    Those in `first` come before what the sampler proposes.
    """
    asked: list[Asked] = []
    while not asked or (len(asked) < size and opened.has(asked[0].candidate.build)):
        exactly = first[len(asked)] if len(asked) < len(first) else None
        pending = [each.candidate for each in asked]
        asked.append(journal.ask(ask_for(build, exactly, pending)))
        build = asked[-1].candidate.build
        opened.close(asked[-1].candidate)
    return sorted(asked, key=lambda each: each.candidate.tokens)


def first_candidate(
    options: Options, space: Space, device_kind: str, earlier: Sequence[Earlier] = ()
) -> Candidate:
    """What a study with these options would probe first. Touches no device and no disk."""
    predictor = Predictor(space, device_kind, earlier, objective=options.objective)
    sampler = samplers.make(options.sampler, space, predictor, options.objective, options.seed)
    journal, opened = Journal.in_memory(), OpenCandidates(space)
    journal.use(Adapter(space, sampler))

    def ask_for(build: Build | None, exactly: object, pending: Sequence[Candidate]) -> Ask:
        return Ask(allowed=opened.places(build), pending=tuple(pending))

    size = sampler.round if options.trials is None else min(sampler.round, options.trials)
    build = space.opening[0] if sampler.round > 1 else None
    return ask_round(journal, opened, ask_for, size, build=build)[0].candidate
