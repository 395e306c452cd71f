"""One probe: run until the machine leaves it in peace, and judged under the study's limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import NoNodesError
from autotune.measure.runner import OUT_OF_BUDGET, Job, Result, Runner
from autotune.space.engines import state_bytes
from autotune.space.options import Options
from autotune.space.outcome import (
    DISTURBED_SHARE,
    Measurement,
    Outcome,
    Verdict,
    in_slices,
    judge,
    measurement,
    others_share,
)
from autotune.space.space import Space
from autotune.study.predict.memory import Prediction, kept_on_host
from autotune.wire.budget import Clock
from autotune.wire.reports import Report
from autotune.wire.stopping import Interval, Rule, interval

ATTEMPTS = 3
"""Runs of one probe where the machine keeps disturbing it."""
REPEATS_SHARE = 0.05
"""Of the budget, that one candidate's disturbed runs may take together."""
BUSY, HEAT, MEMORY = "busy", "heat", "memory"
FOREIGN_SHARE = 0.01
"""Of the capacity, by which others' memory may change in a probe."""
SUSTAIN_S, FINAL_S, FULL_BUDGET_S = 3.0, 10.0, 600.0
"""On CUDA: seconds of steps before a group's first timing, and of timing in a final, in a budget
of the last; in proportion in smaller ones."""
ENERGY_S = {"cpu": 0.5, "cuda": 3.0}
"""Seconds of timing where the objective is of energy, at least: a counter of a GPU moves ten times
a second."""
PAY_BACK = 2.0
"""A group stays up until its probes took this many times its start."""


def rule_for(device_kind: str, options: Options, *, final: bool = False) -> Rule:
    """The stopping rule's numbers.

    15 s of steady steps know a median to 1 % on an idle GPU; in a short budget no probe may take
    more than a fiftieth of it. A CPU shares its cores with the rest of the machine: 2 %. A GPU's
    clocks fall under load: a group runs before it is timed, and finals are timed for long.
    """
    limit_s = min(15.0, max(2.0, options.limits.budget_s / 50))
    on_cpu = device_kind == "cpu"
    scale = 0.0 if on_cpu else min(1.0, options.limits.budget_s / FULL_BUDGET_S)
    energy_s = ENERGY_S[device_kind] if options.search.objective == "tokens_per_joule" else 0.0
    # A step of a mix of lengths is a cycle of many.
    cycles = final and options.space.length_mix is not None
    return Rule(
        warmup_steps=2 if cycles else 3,
        warmup_tolerance=0.2 if on_cpu else 0.1,
        warmup_limit_s=limit_s,
        timed_steps=3 if cycles else 5,
        half_width=0.02 if on_cpu else 0.01,
        timed_limit_s=limit_s,
        sustain_s=scale * SUSTAIN_S,
        timed_least_s=max(energy_s, scale * FINAL_S if final else 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What came of a job, over all its attempts."""

    outcome: Outcome
    starts_s: Sequence[float] = ()
    """What its group starts took."""
    compiles_s: Sequence[float] = ()
    """And compiling, where that was done."""
    put_off: bool = False
    """It says nothing of the candidate, and was no doing of it."""
    suspect: bool = False
    """It was put off in the middle: the candidate may have been the cause."""
    gone: str = ""
    """Why nothing more can be run where it ran; empty where something can."""


class Prober:
    """Runs the jobs of one slot."""

    def __init__(
        self, space: Space, device_kind: str, clock: Clock, runner: Runner, options: Options
    ) -> None:
        self._needs_energy = options.search.objective == "tokens_per_joule"
        self._space = space
        self._device_kind = device_kind
        self._clock = clock
        self._runner = runner
        self._little = FOREIGN_SHARE * space.limits.capacity_bytes
        self._last_start_s = 0.0
        self._group_probe_s = 0.0
        self._normal: set[str] = set()
        """Disturbances that a probe met as often as it was tried: then repeating helps none."""

    @property
    def owed(self) -> bool:
        """Whether the probes of the live group have not paid for its start yet."""
        return self._group_probe_s < PAY_BACK * self._last_start_s

    def measure(
        self, job: Job, predicted: Prediction, until_s: float, attempts: int = ATTEMPTS
    ) -> Probed:
        """Run `job` until the machine leaves it in peace, or until `attempts` were made.

        `until_s` is on the budget's clock.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        started_s = self._clock.elapsed_s()
        repeats_until_s = started_s + REPEATS_SHARE * self._clock.budget_s
        outcome: Outcome | None = None
        start_s = warmup_s = timed_s = 0.0
        least_s = math.inf
        starts_s: list[float] = []
        compiles_s: list[float] = []
        ran = True
        for attempt in itertools.count(1):
            began_s = self._clock.elapsed_s()
            last = attempt >= attempts or BUSY in self._normal or began_s > repeats_until_s
            calm = 1.0 if last else DISTURBED_SHARE[self._device_kind]
            job = replace(job, rule=replace(job.rule, calm=calm))
            try:
                result = self._runner.run(job, self._clock.at(until_s))
            except NoNodesError as error:
                why, ran = str(error), False
                result = Result(verdict=Verdict.SKIPPED, reason=why, put_off=True, gone=why)
            if result.reason.startswith(OUT_OF_BUDGET):
                reason = job.budget + result.reason.removeprefix("the budget")
                result = replace(result, reason=reason)
            repeats_until_s += result.waited_s
            took_s = self._clock.elapsed_s() - began_s - result.waited_s
            compiled_s = result.report.compile_s if result.report is not None else 0.0
            compiles_s += [compiled_s] if compiled_s else []
            if result.group_start_s:
                starts_s.append(result.group_start_s)
                start_s += result.group_start_s + compiled_s
            self._note_group(result)
            again = self._outcome(job, result)
            warmup_s, timed_s = warmup_s + again.warmup_s, timed_s + again.timed_s
            if again.verdict == Verdict.OK:
                least_s = min(least_s, again.warmup_s + again.timed_s)
            outcome = again if outcome is None else self._calmer(outcome, again)
            outcome = replace(outcome, attempts=attempt)
            if again.verdict.bounds_memory and result.warm and not job.fresh and attempts > 1:
                job = replace(job, fresh=True)  # what the last probes left behind may be the cause
            elif (
                result.put_off
                or attempt >= attempts
                or not self._disturbances(outcome, result) - self._normal
                or self._clock.elapsed_s() + took_s > min(until_s, repeats_until_s)
            ):
                break
            elif MEMORY in self._disturbances(again, result):
                job = replace(job, fresh=True)  # one that sees the others' memory as it is now
        assert outcome is not None
        if attempt > 1:
            self._normal |= self._disturbances(outcome, result)
        elif outcome.measurement is not None:
            self._normal &= self._disturbances(outcome, result) | {HEAT}
        outcome = replace(
            outcome,
            started_s=started_s,
            probe_s=self._clock.elapsed_s() - started_s,
            group_start_s=start_s,
            compile_s=sum(compiles_s, 0.0),
            warmup_s=warmup_s,
            timed_s=timed_s,
            least_s=least_s if least_s < math.inf else 0.0,
            predicted_peak_bytes=predicted.bytes,
            predicted_low_bytes=predicted.low_bytes,
            predicted_high_bytes=predicted.high_bytes,
        )
        put_off = result.put_off and outcome.put_off  # an earlier attempt may have told enough
        return Probed(
            outcome=outcome,
            starts_s=starts_s,
            compiles_s=compiles_s,
            put_off=put_off,
            suspect=put_off and ran,
            gone=result.gone,
        )

    def _note_group(self, result: Result) -> None:
        """Know whether the live group has paid for its start."""
        if result.group_start_s:
            self._last_start_s, self._group_probe_s = result.group_start_s, 0.0
        if result.report is not None:
            self._group_probe_s += result.report.warmup_s + result.report.timed_s

    def _disturbances(self, outcome: Outcome, last: Result) -> set[str]:
        """What made `outcome`, after the `last` attempt, worth less than it could be."""
        found = outcome.measurement
        if found is None or outcome.verdict.bounds_memory:
            report = last.report
            foreign = 0 if report is None else report.conditions.foreign_bytes
            return {MEMORY} if max(last.foreign_bytes, foreign) > self._little else set()
        busy = found.disturbed_share > DISTURBED_SHARE[self._device_kind]
        hot = found.conditions.thermally_throttled
        memory = found.conditions.foreign_bytes > self._little
        seen = {BUSY: busy, HEAT: hot, MEMORY: memory}
        return {name for name, is_so in seen.items() if is_so}

    def _calmer(self, first: Outcome, second: Outcome) -> Outcome:
        """Of two runs of one probe the one to keep: what is surer of memory, else the calmer one.

        The second was in a fresh group where memory was short in the first.
        """
        memory = first.verdict.bounds_memory or second.verdict.bounds_memory
        if memory or first.measurement is None:
            return second
        if second.measurement is None:
            return first
        return min(first, second, key=lambda o: self._disturbance(o.measurement))

    def _disturbance(self, found: Measurement | None) -> tuple[bool, bool, float]:
        assert found is not None
        seen = found.conditions
        return seen.foreign_bytes > self._little, seen.thermally_throttled, found.disturbed_share

    def _outcome(self, job: Job, result: Result) -> Outcome:
        """What `result` means under this study's limits."""
        outcome = Outcome(
            verdict=result.verdict,
            reason=result.reason,
            parameters=result.parameters,
            versions=result.versions,
            peaks=result.peaks,
            of_host=result.of_host,
            lacks_op=result.lacks_op,
            unsupported=result.unsupported,
            only=result.only,
            log=result.log,
        )
        if result.report is None:
            return outcome
        found = self._measurement(job, result.report)
        state = state_bytes(self._space.workload, job.candidate)
        mine = state.host + state.passing + kept_on_host(self._space.workload, job.candidate)
        moved = mine * self._space.workload.ranks_on_a_node
        verdict, reason = judge(found.peaks, self._space.limits, int(moved))
        if verdict == Verdict.OK:
            verdict, reason = result.verdict, result.reason
            if verdict == Verdict.PRUNED:
                reason = "too slow to beat the incumbent; stopped early"
        if verdict.fits and self._needs_energy and found.joules_per_token is None:
            reason = "the energy counter of its device told nothing"
            return replace(outcome, verdict=Verdict.CRASHED, reason=reason, peaks=found.peaks)
        return replace(
            outcome,
            verdict=verdict,
            reason=reason,
            measurement=found,
            peaks=found.peaks,
            warmup_s=result.report.warmup_s,
            timed_s=result.report.timed_s,
        )

    def _measurement(self, job: Job, report: Report) -> Measurement:
        power_w = report.energy.joules / sum(report.step_s) if report.energy else None
        ran = interval(report.step_s)
        step = self._step(job, ran)
        return measurement(
            job.candidate,
            self._space.workload,
            step,
            peaks=report.peaks,
            disturbed_share=others_share(report.conditions),
            conditions=report.conditions,
            kernels=report.attention,
            compile_s=report.compile_s,
            ran=report.ran,
            mean_power_w=power_w,
            slices_s=in_slices(report.step_s, step.median / ran.median),
        )

    def _step(self, job: Job, ran: Interval) -> Interval:
        """A step of the real schedule: where lengths differ and the longest alone `ran`, as much
        shorter as batches are expected to be."""
        workload = self._space.workload
        if job.mixed:
            cycle_steps = workload.cycle_steps(job.candidate, job.micro_steps)
            return replace(ran, steps=ran.steps * cycle_steps)
        share = workload.padded_share(job.candidate)
        return Interval(share * ran.median, share * ran.low, share * ran.high, ran.steps)
