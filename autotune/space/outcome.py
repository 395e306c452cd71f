"""The result of a probe: `Verdict`, `Measurement`, `Outcome`, and the study's `Record`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal

from autotune.space.axes import AXES, OTHER_AXES
from autotune.space.candidate import Candidate
from autotune.space.space import Limits
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.reports import DURING, TRAIN, Conditions, InPhase, Peaks, Ran
from autotune.wire.stopping import Interval, interval

Objective = Literal["flops", "tokens_per_s", "samples_per_s", "tokens_per_joule"]
Purpose = Literal["search", "final", "phases"]
"""The purpose of a probe. "phases" is a launch with --phase-args: it has peaks, no speed."""

DISTURBED_SHARE = {"cpu": 0.15, "cuda": 0.5}
"""More of others' processor time disturbs a timing; on CUDA the host only feeds the device."""
DISTURBED_DEVICE_SHARE = 0.15
"""The same of a GPU's time."""
MOST_SLICES = 16


class Verdict(StrEnum):
    """How a trial ended. Only an ok one can be the result."""

    OK = "ok"
    OOM = "oom"
    OVER_CEILING = "over_ceiling"
    OVER_HOST_CEILING = "over_host_ceiling"
    UNSUPPORTED = "unsupported"
    HUNG = "hung"
    CRASHED = "crashed"
    PRUNED = "pruned"
    """Fits, and was stopped early: too slow to beat the incumbent."""
    SKIPPED = "skipped"
    """Not measured: a smaller candidate did not fit, or the budget ended first."""

    @property
    def bounds_memory(self) -> bool:
        """Whether candidates that need at least as much memory cannot fit, either."""
        return self in (Verdict.OOM, Verdict.OVER_CEILING, Verdict.OVER_HOST_CEILING)

    @property
    def fits(self) -> bool:
        return self in (Verdict.OK, Verdict.PRUNED)

    @property
    def broke(self) -> bool:
        """Whether the candidate does not explain its end."""
        return self in (Verdict.CRASHED, Verdict.HUNG)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurement of one candidate. Rates are of all ranks together."""

    step: Interval
    """Seconds of an optimizer step of the real schedule, on the slowest rank."""
    tokens_per_s: float
    samples_per_s: float
    model_flops_per_s: float
    peaks: Peaks
    """The largest over ranks; `host_bytes` is the sum over the ranks of this host."""
    disturbed_share: float
    """Share of processor time, or of device time if more, that others took."""
    conditions: Conditions
    kernels: str = ""
    """Kernels that computed attention, by torch's names, if torch's own function was called."""
    compile_s: float = 0.0
    """Seconds of compiling before the first step."""
    compilations: int = 0
    """Number of compilations in that time."""
    shape_compile_s: float = 0.0
    """Seconds of compiling each shape of a mix."""
    spread_s: float = 0.0
    """Seconds a step to compile a mix's shapes, spread over the run; in rates, not in `step`."""
    ran: Ran | None = None
    """The real run of a user's script."""
    joules_per_token: float | None = None
    """Energy of all devices, or of the host's processors with all users; None if unknown."""

    @property
    def mean_power_w(self) -> float | None:
        """The mean power in the timed steps, of the same hardware as `joules_per_token`."""
        return self.joules_per_token and self.joules_per_token * self.tokens_per_s

    real_share: float | None = None
    """The share of a batch's tokens that are no padding, if lengths differ. `step` and rates are
    then those of the mix: expected ones if only the longest samples ran."""
    slices_s: tuple[float, ...] = ()
    """Median step times of even slices of the timed steps, in the order of time."""
    phases: dict[str, InPhase] = field(default_factory=dict)
    """Peaks by phase, if a script was seen to do more than train."""
    rank_bytes: tuple[int, ...] = ()
    """Peak of each rank's device, where capacities differ; `peaks` are of the smallest."""

    @property
    def cost_s(self) -> Interval:
        """Seconds of a step, with its share of compiling."""
        return self.step.plus(self.spread_s)

    @property
    def step_times(self) -> dict[int, float]:
        """The medians by the number of the last step of their slice."""
        count = len(self.slices_s)
        return {self.step.steps * n // count: s for n, s in enumerate(self.slices_s, start=1)}

    def value(self, objective: Objective) -> float:
        """The quantity to maximise; 0 if it was not measured."""
        return {
            "flops": self.model_flops_per_s,
            "tokens_per_s": self.tokens_per_s,
            "samples_per_s": self.samples_per_s,
            "tokens_per_joule": 1 / self.joules_per_token if self.joules_per_token else 0.0,
        }[objective]


@dataclass(frozen=True, kw_only=True)
class ProbeEnd:
    verdict: Verdict
    reason: str = ""
    peaks: Peaks | None = None
    """The largest peaks of any rank; a failed probe may have them, too."""
    of_host: bool = False
    """Whether the host's memory ran out, not the device's."""
    group_start_s: float = 0.0
    """Seconds that starting a group took; 0 in a live one."""
    parameters: int | None = None
    versions: dict[str, str] | None = None
    unsupported: tuple[str, ...] = ()
    """The axes whose values, together, are not supported, if that is known."""
    lacks_op: str = ""
    """An operation that its engine compiles, and that this run could not load."""
    only: dict[str, int] = field(default_factory=dict)
    """By axis, values that a script runs for any request."""
    log: str = ""
    """Name of the log of rank 0, or of a script's launch. It covers all trials of the group."""
    needs_s: float | None = None
    """Seconds that a launch needs whose time ran out; None if it made no step."""

    @property
    def ended(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(ProbeEnd)}


@dataclass(frozen=True, kw_only=True)
class Outcome(ProbeEnd):
    """The outcome of one trial. Times are seconds; `started_s` counts from the study's start."""

    started_s: float = 0.0
    probe_s: float = 0.0
    """Wall time of the trial, with `group_start_s`."""
    compile_s: float = 0.0
    """Its part for compiling the model; 0 if nothing was compiled."""
    warmup_s: float = 0.0
    timed_s: float = 0.0
    """Its part for timed steps, over all attempts."""
    least_s: float = 0.0
    """Seconds of steps in the quickest finished attempt."""
    measurement: Measurement | None = None
    phases: dict[str, InPhase] = field(default_factory=dict)
    """Peaks by phase, of a launch for phases, which is not timed."""
    witness: str = ""
    """Key of the candidate whose failure settled this one."""
    predicted_peak_bytes: int | None = None
    predicted_low_bytes: int | None = None
    predicted_high_bytes: int | None = None
    """The prediction before it ran, with a 95 % interval."""
    attempts: int = 1
    """Number of runs: more than 1 after a disturbance, or a warm group without memory."""

    @property
    def put_off(self) -> bool:
        """Whether it says nothing of its candidate, so this may be tried again."""
        return bool(self.lacks_op) or (self.verdict == Verdict.SKIPPED and not self.witness)


@dataclass(frozen=True)
class Record:
    """One finished trial in the journal."""

    number: int | None
    """The number of the trial or the final; None for a candidate that was never proposed."""
    purpose: Purpose
    candidate: Candidate
    outcome: Outcome

    @property
    def measured(self) -> Measurement:
        """The measurement. Raises ValueError without one."""
        if self.outcome.measurement is None:
            raise ValueError(f"{self.candidate.key} has no measurement")
        return self.outcome.measurement

    def settles(self, candidate: Candidate) -> bool:
        """Whether this record shows how `candidate` would end.

        It does if this did not fit and `candidate` needs no less memory. It also does if
        `candidate` has the same unsupported values.
        """
        if self.outcome.only:
            return any(getattr(candidate, n) != v for n, v in self.outcome.only.items())
        if self.outcome.verdict == Verdict.UNSUPPORTED:
            return all(
                getattr(candidate, name) == getattr(self.candidate, name)
                for name in self._unsupported
            )
        return self.outcome.verdict.bounds_memory and candidate.covers(self.candidate)

    @property
    def _unsupported(self) -> tuple[str, ...]:
        """The axes unsupported together; if the rank does not know, all that are not plain."""
        return self.outcome.unsupported or tuple(
            name
            for name in OTHER_AXES
            if name in ("zero_stage", "offload")
            or getattr(self.candidate, name) not in (AXES[name].plain, "full")
        )

    def skipped(
        self, candidate: Candidate, number: int | None = None, *, name: str = ""
    ) -> Record:
        """The record of a skipped `candidate`. This one is its witness, shown as `name`."""
        verdict, seen = self.outcome.verdict, name or self.candidate.key
        if self.outcome.only:
            ignored = ", ".join(f"{{{name}}}" for name in self.outcome.only)
            reason = f"the script ignores {ignored}: see {seen}"
        elif verdict == Verdict.UNSUPPORTED:
            together = ", ".join(self._unsupported)
            reason = f"the same {together} as {seen}, which is unsupported"
        else:
            reason = f"needs no less than {seen}, which was {verdict}"
        outcome = Outcome(
            verdict=Verdict.SKIPPED,
            started_s=self.outcome.started_s + self.outcome.probe_s,
            reason=reason,
            witness=self.candidate.key,
            lacks_op=self.outcome.lacks_op,
        )
        return Record(number, "search", candidate, outcome)


def measurement(
    candidate: Candidate,
    workload: Workload,
    step: Interval,
    *,
    peaks: Peaks,
    disturbed_share: float,
    conditions: Conditions,
    kernels: str = "",
    compile_s: float = 0.0,
    compilations: int = 0,
    shape_compile_s: float = 0.0,
    mean_power_w: float | None = None,
    ran: Ran | None = None,
    slices_s: tuple[float, ...] = (),
    phases: Mapping[str, InPhase] | None = None,
    rank_bytes: Sequence[int] = (),
) -> Measurement:
    """The measurement for `step` seconds per optimizer step, requested or as it `ran`."""
    samples = workload.step_samples(candidate) if ran is None else ran.samples
    tokens = workload.step_tokens(candidate) if ran is None else ran.tokens
    spread_s = 0.0
    if workload.length_mix is not None:
        shapes = workload.expected_shapes(candidate)
        spread_s = shape_compile_s * shapes / workload.length_mix.run_steps
    step_s = step.median + spread_s
    samples_per_s, tokens_per_s = samples / step_s, tokens / step_s
    flops = workload.flops_per_token(candidate)
    if ran is not None:  # arXiv 2001.08361, section 2.1; frozen weights get no gradient
        flops = 6.0 * ran.trainable + 4.0 * ran.frozen
    return Measurement(
        step=step,
        tokens_per_s=tokens_per_s,
        samples_per_s=samples_per_s,
        model_flops_per_s=tokens_per_s * flops,
        peaks=peaks,
        disturbed_share=disturbed_share,
        conditions=conditions,
        kernels=kernels,
        compile_s=compile_s,
        compilations=compilations,
        shape_compile_s=shape_compile_s,
        spread_s=spread_s,
        ran=ran,
        joules_per_token=mean_power_w and mean_power_w / tokens_per_s,
        real_share=workload.real_share(candidate),
        slices_s=slices_s,
        phases=dict(phases or {}),
        rank_bytes=tuple(rank_bytes),
    )


def in_slices(step_s: Sequence[float], scale: float = 1.0) -> tuple[float, ...]:
    """Medians of up to `MOST_SLICES` even slices of `step_s`, `scale` times as long."""
    count = min(MOST_SLICES, len(step_s))
    ends = [len(step_s) * n // count for n in range(count + 1)]
    medians = (interval(list(step_s[first:end])).median for first, end in pairwise(ends))
    return tuple(float(f"{scale * each:.5g}") for each in medians)


def others_share(seen: Conditions) -> float:
    """Share of processor or device time that others and the hypervisor took."""
    others_s = max(0.0, seen.busy_cpu_s - seen.own_cpu_s) + seen.steal_cpu_s
    share = min(1.0, others_s / seen.interval_cpu_s) if seen.interval_cpu_s > 0 else 0.0
    return max(share, seen.others_share or 0.0)


def step_cost_for(
    value: float, candidate: Candidate, workload: Workload, objective: Objective
) -> float:
    """Seconds, or joules, per step at which `candidate` reaches `value` of the objective."""
    samples, tokens = workload.step_samples(candidate), workload.step_tokens(candidate)
    flops = tokens * workload.flops_per_token(candidate)
    work = {
        "flops": flops,
        "tokens_per_s": tokens,
        "samples_per_s": samples,
        "tokens_per_joule": tokens,
    }[objective]
    return work / value


def phase_of_peak(phases: Mapping[str, InPhase], field: str, above: int) -> str:
    """The phase with the largest peak by `field`, if training stays below `above`; else empty."""
    sizes: dict[str, int] = {name: getattr(each.peaks, field) for name, each in phases.items()}
    return max(sizes, key=sizes.__getitem__) if sizes.get(TRAIN, above + 1) <= above else ""


def judge(
    peaks: Peaks,
    limits: Limits,
    offloaded_bytes: int = 0,
    phases: Mapping[str, InPhase] | None = None,
) -> tuple[Verdict, str]:
    """Whether `peaks` are within `limits`, and why not; all ranks moved `offloaded_bytes`."""

    def during(field: str, above: int) -> str:
        phase = phase_of_peak(phases or {}, field, above)
        return f" {DURING[phase]}" if phase else ""

    if peaks.device_bytes > limits.limit_bytes:
        where = during("device_bytes", limits.limit_bytes)
        return Verdict.OVER_CEILING, (
            f"peak {gib(peaks.device_bytes)}{where} is over the ceiling of"
            f" {gib(limits.limit_bytes)} ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})"
        )
    if peaks.alloc_retries:
        return Verdict.OVER_CEILING, (
            f"the allocator had to retry {peaks.alloc_retries} times in timed steps: unstable"
        )
    if peaks.host_bytes > limits.host_limit_bytes:
        where = during("host_bytes", limits.host_limit_bytes)
        return Verdict.OVER_HOST_CEILING, (
            f"host peak {gib(peaks.host_bytes)}{where} is over the host ceiling of"
            f" {gib(limits.host_limit_bytes)}; about {gib(offloaded_bytes)} of it is offload"
        )
    return Verdict.OK, ""
