"""The study: ask for candidates, probe them, tell what came, and confirm the best in fresh groups.

The budget is wall clock from the command's first statement, before its imports, to the written
best.json. A part of it is kept for the finals; the rest is the search's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import optuna
from optuna.trial import Trial

from autotune.budget import Clock, StopFlag
from autotune.folder.journal import Journal, candidate_of
from autotune.options import Options
from autotune.outcome import Outcome, Record, Verdict, step_s_for
from autotune.predict import memory
from autotune.predict.trace import Activations
from autotune.report import Reporter
from autotune.runner import Job, Runner, StopRequestedError
from autotune.samplers import adapter as sampler
from autotune.samplers.frontier import Costs
from autotune.space.space import Build, Candidate, Space
from autotune.study.prober import Prober
from autotune.wire.messages import Rule

FINAL_ROUNDS = 2
FINALS_SHARE = 0.4
"""The finals' part of the budget is never more than this."""
RANKING_MICRO_STEPS = 2
"""Micro-steps of a longer schedule that the search runs; finals run it whole."""
HOPELESS_STARTS = 3
"""So many probes in a row that break before anything was measured end the study."""
FRAGILE_BREAKS = 2
"""A build of which so many probes broke is tried only when nothing else is left."""
CLOSING_S = 1.0
"""Kept to end the last group and write the result."""


def rule_for(kind: str, budget_s: float) -> Rule:
    """The stopping rule's numbers.

    15 s of steady steps know a median to 1 % on an idle GPU; in a short budget no probe may take
    more than a fiftieth of it. A CPU shares its cores with the rest of the machine: 2 %.
    """
    limit_s = min(15.0, max(2.0, budget_s / 50))
    on_cpu = kind == "cpu"
    return Rule(
        warmup_steps=3,
        warmup_tolerance=0.2 if on_cpu else 0.1,
        warmup_limit_s=limit_s,
        timed_steps=5,
        half_width=0.02 if on_cpu else 0.01,
        timed_limit_s=limit_s,
    )


class Study:
    """One study over one space. `run` is the whole of it."""

    def __init__(
        self,
        *,
        options: Options,
        space: Space,
        device_kind: str,
        clock: Clock,
        journal: Journal,
        proposals: sampler.SpaceSampler,
        runner: Runner,
        reporter: Reporter,
        stop: StopFlag,
        publish: Callable[[Sequence[Record]], object],
        traced: Callable[[], Activations | None] = lambda: None,
    ) -> None:
        self._options = options
        self._space = space
        self._kind = device_kind
        self._clock = clock
        self._journal = journal
        self._sampler = proposals
        self._runner = runner
        self._reporter = reporter
        self._stop = stop
        self._publish = publish
        self._traced = traced
        self._rule = rule_for(device_kind, options.budget_s)
        self._prober = Prober(space, device_kind, clock, runner)
        self._probed = 0
        self._earlier = 0
        self._again: list[Candidate] = []
        self._bounds: list[Record] = []
        self.records: list[Record] = []
        """Trials and finals, as they ended."""
        self.settled: list[Record] = []
        """Candidates that were never proposed, since a trial's outcome says how they would end."""

    def restore(self, records: Sequence[Record]) -> None:
        """Go on from the `records` of an earlier run, in the order in which they ended."""
        self._sampler.learn(self._journal.study)
        self._prober.restore(records)
        for record in records:
            self.records.append(record)
            self._probed += record.kind == "search" and record.outcome.verdict != Verdict.SKIPPED
            self._draw_bounds(record)
        self._earlier = len(records)
        past = self._journal.past
        self._sampler.avoid(past.suspects)
        self._again = [c for c in past.interrupted if not self._sampler.avoids(c)]
        self._reporter.restored(self.records, self._incumbent())

    def run(self) -> None:
        """Search, then finals; what was measured is in `records` even if the user stopped it."""
        try:
            self._search()
            self._finals()
        except StopRequestedError:
            self._reporter.note("stopped by the user")

    # The search.

    def _search(self) -> None:
        while (why := self._why_stop() or self._why_enough()) is None:
            asked = self._ask_round()
            numbers = [trial.number for trial, _ in asked]
            for trial, candidate in asked:
                if self._why_stop() is not None:
                    record = self._put_off(trial, candidate, "the search ended before its turn")
                elif self._sampler.avoids(candidate):
                    record = self._put_off(trial, candidate, "the last probes of its build broke")
                else:
                    record = self._probe_trial(trial, candidate, numbers)
                self._tell(trial, record)
        self._reporter.note(f"search ended: {why}")

    def _why_enough(self) -> str | None:
        """Why no candidate is worth a probe; None while one may be."""
        if not self._sampler.has_open():
            return "every candidate of the space was tried"
        self._take_trace()
        # Candidates of the live build are the cheaper by a group's start.
        self._sampler.costs = Costs(
            self._runner.live_build, self._prober.start_s, self._typical_probe_s()
        )
        return self._sampler.why_stop(self._journal.study)

    def _why_stop(self) -> str | None:
        """Why no further probe is run; None while there may be one."""
        if self._stop:
            raise StopRequestedError
        if self._options.trials is not None and self._probed >= self._options.trials:
            return f"--trials {self._options.trials} probes were run"
        if self._clock.remaining_s() < self._finals_s() + self._typical_probe_s():
            return "its part of the budget is spent"
        broken = [r.outcome.verdict.broke for r in self.records]
        if sum(broken) == self._probed and sum(broken[self._earlier :]) >= HOPELESS_STARTS:
            return f"the first {sum(broken)} probes all broke"
        return None

    def _take_trace(self) -> None:
        """Predict memory from the trace once it is there."""
        if (found := self._traced()) is None:
            return
        self._traced = lambda: None
        on_cpu = self._kind == "cpu"  # elsewhere the process is not on the device
        more_base = memory.more_base(found.answer.base_bytes) if on_cpu else 0.0
        self._sampler.trace(found.over_state(self._space), more_base)

    def _ask_round(self) -> list[tuple[Trial, Candidate]]:
        """Some open candidates of one build, ascending in tokens.

        A sampler that knows nothing of what a group's start costs is asked for several at once:
        the live group is kept until its probes have paid for it, unless all of its last round
        were too slow. Then come builds of the opening, so that the sampler has seen every value
        of their axes, and then the sampler chooses. While nothing has fitted, the smallest open
        candidate comes next, alone. A resumed study begins with the round that was interrupted.
        """
        size = self._sampler.round
        if self._again:
            self._sampler.forced, self._again = self._again, []
            begun = self._journal.past.round_begun
            return ask_round(
                self._journal.study, self._sampler, len(self._sampler.forced) if begun else size
            )
        self._sampler.build = self._build_of_round(size) if size > 1 else None
        if any(r.outcome.verdict.bounds_memory for r in self._bounds) and not self._fitting():
            usable = (c for c in self._sampler.open_candidates() if not self._sampler.avoids(c))
            self._sampler.forced = [min(usable, key=lambda c: (c.depth, c.tokens))]
            return ask_round(self._journal.study, self._sampler, 1)
        left = size if self._options.trials is None else self._options.trials - self._probed
        return ask_round(self._journal.study, self._sampler, min(size, left))

    def _build_of_round(self, size: int) -> Build | None:
        """The build that the next round is to stay in; None leaves it to the sampler."""
        promising = any(r.outcome.verdict == Verdict.OK for r in self.records[-size:])
        if self._prober.owed and promising and self._runner.live_build is not None:
            return self._runner.live_build
        seen = {record.candidate.build for record in self.records}
        unseen = (b for b in self._space.opening if b not in seen and self._sampler.has_open(b))
        return next(unseen, None)

    def _probe_trial(self, trial: Trial, candidate: Candidate, asked: Sequence[int]) -> Record:
        """Measure `candidate`, unless what is known already says how that would end.

        `asked` are the numbers of its round's trials.
        """
        witness = next((r for r in self._bounds if r.settles(candidate)), None)
        if witness is not None:
            return witness.skipped(candidate, trial.number)
        self._reporter.probing("search", candidate)
        self._journal.begin_probe(trial, self._clock.elapsed_s(), asked)
        self._probed += 1
        grad_accum = self._grad_accum(candidate)
        job = Job(
            candidate,
            grad_accum,
            min(grad_accum, RANKING_MICRO_STEPS),
            self._rule,
            self._needed_step_s(candidate),
            fresh=False,
        )
        try:
            outcome = self._measure(job, self._clock.budget_s - self._finals_s())
        except StopRequestedError:
            self._journal.excuse(trial)
            raise
        return Record(trial.number, "search", candidate, outcome)

    def _put_off(self, trial: Trial, candidate: Candidate, why: str) -> Record:
        """Leave `candidate` for later: it may be proposed again."""
        self._sampler.reopen(candidate)
        outcome = Outcome(Verdict.SKIPPED, started_s=self._clock.elapsed_s(), reason=why)
        return Record(trial.number, "search", candidate, outcome)

    def _draw_bounds(self, record: Record) -> list[Record]:
        """Learn from a trial that ended what not to try; returns what it settles."""
        verdict = record.outcome.verdict
        if record.kind == "final" or verdict.fits or verdict == Verdict.SKIPPED:
            return []
        if verdict.broke:
            build = record.candidate.build
            broken = [r for r in self.records if r.outcome.verdict.broke]
            if sum(r.candidate.build == build for r in broken) >= FRAGILE_BREAKS:
                self._sampler.avoid(c for c in self._space.candidates if c.build == build)
            return []
        self._bounds.append(record)
        settled = [c for c in self._sampler.open_candidates() if record.settles(c)]
        for candidate in settled:
            self._sampler.close(candidate)
        skipped = [record.skipped(candidate) for candidate in settled]
        self.settled += skipped
        return skipped

    def _needed_step_s(self, candidate: Candidate) -> float | None:
        """Seconds per step above which `candidate` cannot reach the incumbent's interval."""
        incumbent = self._incumbent()
        if incumbent is None or incumbent.outcome.measurement is None:
            return None
        found = incumbent.outcome.measurement
        low = found.value(self._options.objective) * found.step.median / found.step.high
        return step_s_for(low, candidate, self._space.workload, self._options.objective)

    def _tell(self, trial: Trial, record: Record) -> None:
        found = record.outcome.measurement
        value = None if found is None else found.value(self._options.objective)
        self._journal.tell(trial, record, value, self._space.limits)
        before = self._incumbent()
        self.records.append(record)
        if self._incumbent() is not before:
            self._publish([*self.records, *self.settled])
        self._reporter.told(record, self._incumbent())
        if skipped := self._draw_bounds(record):
            self._journal.add_skipped(skipped)
            self._reporter.note(f"skipped {len(skipped)}: {skipped[0].outcome.reason}")

    def _measure(self, job: Job, until_s: float) -> Outcome:
        self._sampler.learn(self._journal.study)
        return self._prober.measure(job, self._sampler.memory.predict(job.candidate), until_s)

    # The finals.

    def _finals(self) -> None:
        """Measure the best candidates again, in turn, each time in a fresh group.

        In turn, so that a drift of the machine favours none. A final that does not fit after all
        makes room for the next best.
        """
        while (record := self._next_finalist()) is not None:
            if self._stop:
                raise StopRequestedError
            left_s = self._clock.remaining_s() - CLOSING_S
            grad_accum = micro_steps = self._grad_accum(record.candidate)
            if self._final_s(record, micro_steps) > left_s and micro_steps > RANKING_MICRO_STEPS:
                micro_steps = RANKING_MICRO_STEPS
                self._reporter.note(
                    f"the budget has no time for {grad_accum} micro-steps: {micro_steps} run"
                )
            if self._final_s(record, micro_steps) > left_s:
                self._reporter.note("the budget leaves no time for more finals")
                return
            self._reporter.probing("final", record.candidate)
            job = Job(record.candidate, grad_accum, micro_steps, self._rule, None, fresh=True)
            outcome = self._measure(job, self._clock.budget_s - CLOSING_S)
            number = sum(r.kind == "final" for r in self.records)
            final = Record(number, "final", record.candidate, outcome)
            self.records.append(final)
            self._journal.add_final(final)
            self._reporter.told(final, self._incumbent())
            if outcome.verdict == Verdict.SKIPPED:
                return  # the budget ended in it

    def _next_finalist(self) -> Record | None:
        """The search record of the candidate to measure again next; None after all rounds."""
        left = [r for r in self._finalists() if self._rounds_left(r.candidate)]
        return max(left, key=lambda r: self._rounds_left(r.candidate), default=None)

    def _rounds_left(self, candidate: Candidate) -> int:
        made = sum(
            r.kind == "final" and r.candidate == candidate and r.outcome.verdict != Verdict.SKIPPED
            for r in self.records
        )
        return max(0, FINAL_ROUNDS - made)

    def _finalists(self) -> list[Record]:
        """Search records of the best candidates that have not failed a final."""
        failed = {
            r.candidate
            for r in self.records
            if r.kind == "final"
            and not r.outcome.verdict.fits
            and r.outcome.verdict != Verdict.SKIPPED
        }
        ranked = sorted(self._fitting(), key=self._value, reverse=True)
        return [r for r in ranked if r.candidate not in failed][: self._options.finals]

    def _finals_s(self) -> float:
        """Seconds kept for the finals that are left to make."""
        finalists = self._finalists()
        left_s = sum(
            self._rounds_left(r.candidate) * self._final_s(r, self._grad_accum(r.candidate))
            for r in finalists
        )
        if not finalists:
            one_s = self._prober.start_s + self._typical_probe_s()
            left_s = FINAL_ROUNDS * self._options.finals * one_s
        return min(FINALS_SHARE * self._clock.budget_s, left_s + CLOSING_S)

    def _final_s(self, record: Record, micro_steps: int) -> float:
        """What a final of `record` takes, as far as the search has shown."""
        assert record.outcome.measurement is not None
        part = micro_steps / self._grad_accum(record.candidate)
        step_s = record.outcome.measurement.step.median * part
        least_s = (self._rule.warmup_steps + self._rule.timed_steps) * step_s
        return self._prober.start_s + max(least_s, self._typical_probe_s())

    def _typical_probe_s(self) -> float:
        """Warm-up and timed steps of a candidate that was measured to the end."""
        whole = [r.outcome.warmup_s + r.outcome.timed_s for r in self._fitting()]
        return statistics.median(whole) if whole else self._rule.timed_limit_s

    # What is known.

    def _fitting(self) -> list[Record]:
        """Search records measured to the end that fit."""
        return [r for r in self.records if r.kind == "search" and r.outcome.verdict == Verdict.OK]

    def _incumbent(self) -> Record | None:
        return max(self._fitting(), key=self._value, default=None)

    def _value(self, record: Record) -> float:
        found = record.outcome.measurement
        return found.value(self._options.objective) if found is not None else 0.0

    def _grad_accum(self, candidate: Candidate) -> int:
        accum = self._space.workload.grad_accum(candidate)
        assert accum is not None, "the space holds only candidates that divide the global batch"
        return accum


def first_candidate(options: Options, space: Space, kind: str) -> Candidate:
    """What a study with these options would probe first. Touches no device and no disk."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    proposals = sampler.make(space, options, kind)
    proposals.build = space.opening[0] if proposals.round > 1 else None
    study = optuna.create_study(sampler=proposals, direction="maximize")
    size = proposals.round if options.trials is None else min(proposals.round, options.trials)
    return ask_round(study, proposals, size)[0][1]


def ask_round(
    study: optuna.Study, proposals: sampler.SpaceSampler, size: int
) -> list[tuple[Trial, Candidate]]:
    """At most `size` open candidates of one build, ascending in tokens, and their trials."""
    asked: list[tuple[Trial, Candidate]] = []
    while not asked or (len(asked) < size and proposals.has_open(asked[0][1].build)):
        trial = study.ask(proposals.distributions)
        candidate = candidate_of(trial)
        proposals.close(candidate)
        proposals.build = candidate.build
        asked.append((trial, candidate))
    proposals.build = None
    return sorted(asked, key=lambda item: item[1].tokens)
