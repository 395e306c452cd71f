"""The meaning of a runner's result under the limits of a study."""

from __future__ import annotations

from dataclasses import replace

from autotune.measure.runner import OUT_OF_BUDGET, Job, Result
from autotune.space.candidate import Build
from autotune.space.engines import state_bytes
from autotune.space.outcome import (
    Measurement,
    Objective,
    Outcome,
    Verdict,
    in_slices,
    judge,
    measurement,
    others_share,
)
from autotune.space.space import Space
from autotune.study.predict.memory import kept_on_host
from autotune.wire.reports import Report
from autotune.wire.stopping import Interval, interval


class Judge:
    """Makes outcomes of results."""

    def __init__(self, space: Space, objective: Objective) -> None:
        self._needs_energy = objective == "tokens_per_joule"
        self._space = space
        self._shape_s: dict[Build, float] = {}
        """The most seconds that a shape of a build took to compile."""

    def outcome(self, job: Job, result: Result) -> Outcome:
        """The outcome of `result` under the limits."""
        reason = result.reason
        if reason.startswith(OUT_OF_BUDGET):
            reason = job.budget + reason.removeprefix("the budget")
        outcome = Outcome(**result.ended | {"reason": reason})
        if result.report is None:
            return outcome
        if job.phases:  # nothing was timed
            peaks, phases = replace(result.report.peaks, alloc_retries=0), result.report.phases
            verdict, why = judge(peaks, self._space.limits, phases=phases)
            outcome = replace(outcome, peaks=peaks, phases=phases)
            return replace(outcome, verdict=verdict, reason=why or reason)
        found = self._measurement(job, result.report)
        state = state_bytes(self._space.workload, job.candidate)
        mine = state.host + state.passing + kept_on_host(self._space.workload, job.candidate)
        moved = mine * self._space.workload.ranks_on_a_node
        verdict, reason = judge(found.peaks, self._space.limits, int(moved), found.phases)
        if verdict == Verdict.OK:
            verdict, reason = result.verdict, outcome.reason
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
        build = job.candidate.build
        # A repeated compilation comes from the study's cache; a later run may have no such cache.
        shape_s = self._shape_s[build] = max(self._shape_s.get(build, 0.0), report.shape_compile_s)
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
            compilations=report.compilations,
            shape_compile_s=shape_s,
            ran=report.ran,
            phases=report.phases,
            rank_bytes=report.rank_bytes,
            mean_power_w=power_w,
            slices_s=in_slices(report.step_s, step.median / ran.median),
        )

    def _step(self, job: Job, ran: Interval) -> Interval:
        """A step of the real schedule; the longest that `ran` are scaled to expected batches."""
        workload = self._space.workload
        if job.mixed:
            cycle_steps = workload.cycle_steps(job.candidate, job.micro_steps)
            return replace(ran, steps=ran.steps * cycle_steps)
        share = workload.padded_share(job.candidate)
        return Interval(share * ran.median, share * ran.low, share * ran.high, ran.steps)
