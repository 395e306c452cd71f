"""The study: ask for candidates, probe them, tell what came, and confirm the best in fresh groups.

The budget is wall clock from the command's first statement, before its imports, to the written
best.json. A part of it is kept for the finals; the rest is the search's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial

from autotune import memory, provenance, sampler
from autotune.activations import Activations
from autotune.budget import Clock, StopFlag
from autotune.device import Device
from autotune.device.replay import ReplayDevice
from autotune.export import best
from autotune.frontier import Costs
from autotune.journal import Journal, candidate_of
from autotune.options import Options, gib
from autotune.outcome import (
    DISTURBED_SHARE,
    Measurement,
    Outcome,
    Record,
    Verdict,
    judge,
    measurement,
    others_share,
    step_s_for,
)
from autotune.report import Reporter
from autotune.runner import Job, Result, Runner, StopRequestedError
from autotune.runner.describe import Trace
from autotune.runner.pool import Pool
from autotune.runner.replay import Replay
from autotune.space import Build, Candidate, Space
from autotune.wire import Phase, Report, Rule, interval

PAY_BACK = 2.0
"""A group stays up until its probes took this many times its start."""
FINAL_ROUNDS = 2
FINALS_SHARE = 0.4
"""The finals' part of the budget is never more than this."""
RANKING_MICRO_STEPS = 2
"""Micro-steps of a longer schedule that the search runs; finals run it whole."""
ATTEMPTS = 3
"""Runs of one probe where the machine keeps disturbing it."""
UNKNOWN_START_S = 3.0
"""What starting a group is taken to need before one was started."""
HOPELESS_STARTS = 3
"""So many groups in a row that break before anything was measured end the study."""
CLOSING_S = 1.0
"""Kept to end the last group and write the result."""


class Ending(StrEnum):
    """How a study ended."""

    FOUND = "found"
    NOTHING_FITS = "nothing_fits"
    STOPPED = "stopped"
    NO_MEASUREMENT = "no_measurement"


@dataclass(frozen=True)
class Ended:
    code: Ending
    message: str = ""
    """One line for the user; empty where a result was found."""


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
        self._probed = 0
        self._group_start_s: list[float] = []
        self._group_probe_s = 0.0
        self._bounds: list[Record] = []
        self.records: list[Record] = []
        """Trials and finals, as they ended."""
        self.settled: list[Record] = []
        """Candidates that were never proposed, since a trial's outcome says how they would end."""

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
            for trial, candidate in self._ask_round():
                if self._why_stop() is None:
                    record = self._probe_trial(trial, candidate)
                else:
                    outcome = Outcome(Verdict.SKIPPED, reason="the search ended before its turn")
                    record = Record(trial.number, "search", candidate, outcome)
                self._tell(trial, record)
        self._reporter.note(f"search ended: {why}")

    def _why_enough(self) -> str | None:
        """Why no candidate is worth a probe; None while one may be."""
        if not self._sampler.has_open():
            return "every candidate of the space was tried"
        self._take_trace()
        # Candidates of the live build are the cheaper by a group's start.
        self._sampler.costs = Costs(
            self._runner.live_build, self._start_s(), self._typical_probe_s()
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
        broken = [r for r in self.records if r.outcome.verdict in (Verdict.CRASHED, Verdict.HUNG)]
        if len(broken) >= HOPELESS_STARTS and len(broken) == self._probed:
            return f"the first {len(broken)} probes all broke"
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
        candidate comes next, alone.
        """
        size = self._sampler.round
        self._sampler.build = self._build_of_round(size) if size > 1 else None
        if any(r.outcome.verdict.bounds_memory for r in self._bounds) and not self._fitting():
            smallest = min(self._sampler.open_candidates(), key=lambda c: (c.depth, c.tokens))
            self._journal.study.enqueue_trial(sampler.params(smallest))
            return ask_round(self._journal.study, self._sampler, 1)
        left = size if self._options.trials is None else self._options.trials - self._probed
        return ask_round(self._journal.study, self._sampler, min(size, left))

    def _build_of_round(self, size: int) -> Build | None:
        """The build that the next round is to stay in; None leaves it to the sampler."""
        started_s = self._group_start_s[-1] if self._group_start_s else 0.0
        owed = self._group_probe_s < PAY_BACK * started_s
        promising = any(r.outcome.verdict == Verdict.OK for r in self.records[-size:])
        if owed and promising and self._runner.live_build is not None:
            return self._runner.live_build
        seen = {record.candidate.build for record in self.records}
        unseen = (b for b in self._space.opening if b not in seen and self._sampler.has_open(b))
        return next(unseen, None)

    def _probe_trial(self, trial: Trial, candidate: Candidate) -> Record:
        """Measure `candidate`, unless what is known already says how that would end."""
        foregone = self._foregone(candidate)
        if foregone is not None:
            return Record(trial.number, "search", candidate, foregone)
        self._reporter.probing("search", candidate)
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
        outcome = self._measure(job, self._clock.budget_s - self._finals_s())
        return Record(trial.number, "search", candidate, outcome)

    def _foregone(self, candidate: Candidate) -> Outcome | None:
        """The outcome of a candidate that need not run after all; None if it must."""
        for record in self._bounds:
            if _settles(record, candidate):
                return _skipped(record, self._clock.elapsed_s())
        return None

    def _skip_settled(self, record: Record) -> None:
        """Close every open candidate whose outcome `record` settles."""
        self._bounds.append(record)
        settled = [c for c in self._sampler.open_candidates() if _settles(record, c)]
        if not settled:
            return
        outcome = _skipped(record, self._clock.elapsed_s())
        skipped = [Record(None, "search", candidate, outcome) for candidate in settled]
        for candidate in settled:
            self._sampler.close(candidate)
        self.settled += skipped
        self._journal.add_skipped(skipped)
        self._reporter.note(f"skipped {len(skipped)}: {outcome.reason}")

    def _needed_step_s(self, candidate: Candidate) -> float | None:
        """Seconds per step above which `candidate` cannot reach the incumbent's interval."""
        incumbent = self._incumbent()
        if incumbent is None or incumbent.outcome.measurement is None:
            return None
        found = incumbent.outcome.measurement
        low = found.value(self._options.objective) * found.step.median / found.step.high
        return step_s_for(low, candidate, self._space.workload, self._options.objective)

    def _tell(self, trial: Trial, record: Record) -> None:
        before = self._incumbent()
        self.records.append(record)
        if self._incumbent() is not before:
            self._publish([*self.records, *self.settled])
        found = record.outcome.measurement
        value = None if found is None else found.value(self._options.objective)
        self._journal.tell(trial, record, value, self._space.limits)
        self._reporter.told(record, self._incumbent())
        verdict = record.outcome.verdict
        if verdict.bounds_memory or verdict == Verdict.UNSUPPORTED:
            self._skip_settled(record)

    # One measurement.

    def _measure(self, job: Job, until_s: float) -> Outcome:
        """Run `job` until the machine leaves it in peace, or until it was tried often enough."""
        started_s = self._clock.elapsed_s()
        self._sampler.learn(self._journal.study)
        predicted = self._sampler.memory.predict(job.candidate)
        outcome: Outcome | None = None
        start_s = warmup_s = timed_s = 0.0
        for attempt in range(1, ATTEMPTS + 1):
            began_s = self._clock.elapsed_s()
            result = self._runner.run(job, self._clock.at(until_s))
            took_s = self._clock.elapsed_s() - began_s
            start_s += self._note_group(result)
            again = self._outcome(job, result)
            warmup_s, timed_s = warmup_s + again.warmup_s, timed_s + again.timed_s
            outcome = again if outcome is None else _calmer(outcome, again)
            outcome = replace(outcome, attempts=attempt)
            expected = predicted.bytes <= self._space.limits.limit_bytes
            if result.verdict == Verdict.OOM and result.warm and expected:
                job = replace(job, fresh=True)  # what the last probes left behind may be the cause
            elif not self._disturbed(outcome) or self._clock.elapsed_s() + took_s > until_s:
                break
        assert outcome is not None
        return replace(
            outcome,
            started_s=started_s,
            probe_s=self._clock.elapsed_s() - started_s,
            group_start_s=start_s,
            warmup_s=warmup_s,
            timed_s=timed_s,
            predicted_peak_bytes=predicted.bytes,
            predicted_low_bytes=predicted.low_bytes,
            predicted_high_bytes=predicted.high_bytes,
        )

    def _note_group(self, result: Result) -> float:
        if result.group_start_s:
            self._group_start_s.append(result.group_start_s)
            self._group_probe_s = 0.0
        if result.report is not None:
            self._group_probe_s += result.report.warmup_s + result.report.timed_s
        return result.group_start_s

    def _disturbed(self, outcome: Outcome) -> bool:
        found = outcome.measurement
        if found is None or outcome.verdict.bounds_memory:
            return False
        busy = found.disturbed_share > DISTURBED_SHARE[self._kind]
        return busy or found.conditions.thermally_throttled

    def _outcome(self, job: Job, result: Result) -> Outcome:
        """What `result` means under this study's limits."""
        outcome = Outcome(
            result.verdict,
            reason=result.reason,
            parameters=result.parameters,
            versions=result.versions,
            peaks=result.peaks,
        )
        if result.report is None:
            return outcome
        found = self._measurement(job.candidate, result.report)
        state = self._space.workload.state_bytes(job.candidate)
        moved = (state.host + state.passing) * self._space.workload.world_size
        verdict, reason = judge(found.peaks, self._space.limits, int(moved))
        if verdict == Verdict.OK:
            verdict, reason = result.verdict, result.reason
            if verdict == Verdict.PRUNED:
                reason = "too slow to beat the incumbent; stopped early"
        return replace(
            outcome,
            verdict=verdict,
            reason=reason,
            measurement=found,
            peaks=found.peaks,
            warmup_s=result.report.warmup_s,
            timed_s=result.report.timed_s,
        )

    def _measurement(self, candidate: Candidate, report: Report) -> Measurement:
        return measurement(
            candidate,
            self._space.workload,
            interval(report.step_s),
            peaks=report.peaks,
            disturbed_share=others_share(report.conditions),
            conditions=report.conditions,
        )

    # The finals.

    def _finals(self) -> None:
        """Measure the best candidates again, in turn, each time in a fresh group.

        In turn, so that a drift of the machine favours none. A final that does not fit after all
        makes room for the next best.
        """
        number = 0
        for number, record in enumerate(self._final_turns()):
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
            final = Record(number, "final", record.candidate, outcome)
            self.records.append(final)
            self._journal.add_final(final)
            self._reporter.told(final, self._incumbent())

    def _final_turns(self) -> Iterator[Record]:
        """Search records of the candidates to measure again, in the order of their turns."""
        for _ in range(FINAL_ROUNDS):
            done: set[Candidate] = set()
            while left := [r for r in self._finalists() if r.candidate not in done]:
                done.add(left[0].candidate)
                yield left[0]

    def _finalists(self) -> list[Record]:
        """Search records of the best candidates that have not failed a final."""
        failed = {
            r.candidate for r in self.records if r.kind == "final" and not r.outcome.verdict.fits
        }
        ranked = sorted(self._fitting(), key=self._value, reverse=True)
        return [r for r in ranked if r.candidate not in failed][: self._options.finals]

    def _finals_s(self) -> float:
        """Seconds kept for the finals."""
        expected = [self._final_s(r, self._grad_accum(r.candidate)) for r in self._finalists()]
        one_round_s = sum(expected) or self._options.finals * (
            UNKNOWN_START_S + self._typical_probe_s()
        )
        return min(FINALS_SHARE * self._clock.budget_s, FINAL_ROUNDS * one_round_s + CLOSING_S)

    def _final_s(self, record: Record, micro_steps: int) -> float:
        """What a final of `record` takes, as far as the search has shown."""
        start_s = self._start_s()
        assert record.outcome.measurement is not None
        part = micro_steps / self._grad_accum(record.candidate)
        step_s = record.outcome.measurement.step.median * part
        least_s = (self._rule.warmup_steps + self._rule.timed_steps) * step_s
        return start_s + max(least_s, self._typical_probe_s())

    def _start_s(self) -> float:
        """What starting a group takes."""
        return statistics.median(self._group_start_s or [UNKNOWN_START_S])

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


def run(
    options: Options,
    *,
    space: Space,
    device: Device,
    folder: Path,
    reporter: Reporter,
    argv: Sequence[str],
    clock: Clock,
) -> Ended:
    """Run one study in `folder` and write its result there; the budget is that of `clock`.

    Returns how it ended; no process of the study is left, however that was.
    """
    proposals = sampler.make(space, options, device.kind)
    replayed = device if isinstance(device, ReplayDevice) else None
    fingerprint = (
        replayed.study_fingerprint() if replayed else provenance.fingerprint(device, space)
    )
    origin = {"argv": list(argv), "options": provenance.plain(options), "folder": str(folder)}
    manifest = {"schema_version": 1, "space": space.manifest(), "fingerprint": fingerprint}
    journal = Journal(folder, proposals, manifest | origin)
    reporter.started(space, options.budget_s, folder)
    stop = StopFlag()

    def publish(records: Sequence[Record]) -> dict[str, Any] | None:
        """Write best.json as far as `records` know it; None where nothing fits."""
        choice = best.winner(records, space.workload, options.objective)
        if choice is None:
            return None
        ended = {"elapsed_s": round(clock.elapsed_s(), 3), "stopped_by": stop.name}
        document = best.best_json(
            choice,
            records,
            space,
            options.objective,
            fingerprint=fingerprint | {"ranks": provenance.rank_versions(records)},
            environment=provenance.environment(device, space),
            provenance=origin | ended,
        )
        best.write_best(journal.best, document)
        return document

    trace = Trace(space, device, journal.logs)

    def on_phase(phase: Phase, steps: int) -> None:
        trace.poll()  # it is to be made while the first group starts
        reporter.phase(phase, steps)

    runner: Pool | Replay
    if replayed:
        runner = Replay(replayed.grid, space.limits, replayed.time, options.seed)
    else:
        runner = Pool(
            device=device,
            workload=space.workload,
            limits=space.limits,
            logs=journal.logs,
            seed=options.seed,
            stop=lambda: bool(stop),
            on_phase=on_phase,
            note=reporter.note,
        )

    def leave() -> None:
        runner.kill()
        reporter.abandon()

    stop.kill = leave
    study = Study(
        options=options,
        space=space,
        device_kind=device.kind,
        clock=clock,
        journal=journal,
        proposals=proposals,
        runner=runner,
        reporter=reporter,
        stop=stop,
        publish=publish,
        traced=trace.poll,
    )
    try:
        try:
            study.run()
        finally:
            runner.close()
            trace.close()
        document = publish([*study.records, *study.settled])
        if document is None:
            return _nothing(study.records, space, stop.name)
        if replayed:
            reporter.note(f"{device.infos[0].name}: nothing was measured now, and time is virtual")
        reporter.finished(document, journal.best)
        if stop:
            return Ended(Ending.STOPPED, f"stopped by {stop.name}; the best so far is written")
        return Ended(Ending.FOUND)
    finally:
        reporter.close()
        stop.restore()


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


def _nothing(records: Sequence[Record], space: Space, stopped_by: str | None) -> Ended:
    """Why no configuration can be named."""
    tried = [r for r in records if r.outcome.verdict != Verdict.SKIPPED]
    bounded = [r for r in tried if r.outcome.verdict.bounds_memory]
    if stopped_by is not None:
        return Ended(Ending.NO_MEASUREMENT, f"stopped by {stopped_by} before anything fitted")
    if bounded:
        untried = sum(not any(_settles(r, c) for r in bounded) for c in space.candidates)
        rest = f"; {untried} candidates were not tried: give more --budget" if untried else ""
        return Ended(Ending.NOTHING_FITS, _least(bounded, space) + rest)
    if tried:
        first = tried[0]
        cause = f"{first.candidate.key} was {first.outcome.verdict}: {first.outcome.reason}"
        return Ended(Ending.NO_MEASUREMENT, f"nothing could be measured; first, {cause}")
    return Ended(Ending.NO_MEASUREMENT, "the budget ended before the first probe; try --budget 2m")


def _least(bounded: Sequence[Record], space: Space) -> str:
    """The least peak that was seen, of candidates that did not fit."""
    limits = space.limits
    seen = [(r.outcome.peaks.device_bytes, r) for r in bounded if r.outcome.peaks is not None]
    text = (
        f"nothing fits under {gib(limits.limit_bytes)}"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})"
    )
    if not seen:
        return f"{text}; no candidate lived long enough to say how much it needs"
    peak_bytes, record = min(seen, key=lambda item: item[0])
    how = "held {} when it ran out" if record.outcome.verdict == Verdict.OOM else "peaked at {}"
    return f"{text}; the least peak seen: {record.candidate.key} {how.format(gib(peak_bytes))}"


def _settles(record: Record, candidate: Candidate) -> bool:
    """Whether what `record` found says how `candidate` would end.

    It does if `candidate` needs no less memory than one that did not fit, or if it is of a build
    that is unsupported.
    """
    if record.outcome.verdict == Verdict.UNSUPPORTED:
        return candidate.build == record.candidate.build
    return candidate.covers(record.candidate)


def _skipped(record: Record, now_s: float) -> Outcome:
    """The outcome of a candidate that `record` settles."""
    seen, verdict = record.candidate, record.outcome.verdict
    if verdict == Verdict.UNSUPPORTED:
        reason = f"of the build of {seen.key}, which is unsupported"
    else:
        reason = f"needs no less than {seen.key}, which was {verdict}"
    return Outcome(Verdict.SKIPPED, started_s=now_s, reason=reason, witness=seen.key)


def _calmer(first: Outcome, second: Outcome) -> Outcome:
    """Of two runs of one probe the one to keep: what ran out, else what measured the calmer."""
    if first.measurement is None or second.verdict.bounds_memory:
        return second
    if second.measurement is None:
        return first
    return min(first, second, key=lambda o: _disturbance(o.measurement))


def _disturbance(found: Measurement | None) -> tuple[bool, float]:
    assert found is not None
    return found.conditions.thermally_throttled, found.disturbed_share
