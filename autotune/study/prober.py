"""One probe: run until the machine leaves it in peace, and judged under the study's limits."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from autotune.budget import Clock
from autotune.engines import state_bytes
from autotune.options import Options
from autotune.outcome import (
    DISTURBED_SHARE,
    Measurement,
    Outcome,
    Record,
    Verdict,
    judge,
    measurement,
    others_share,
)
from autotune.predict.memory import Prediction
from autotune.runner import Job, Result, Runner
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.wire.messages import Report
from autotune.wire.stopping import Rule, interval

ATTEMPTS = 3
"""Runs of one probe where the machine keeps disturbing it."""
PAY_BACK = 2.0
"""A group stays up until its probes took this many times its start."""
UNKNOWN_START_S = 3.0
"""What starting a group is taken to need before one was started."""


def rule_for(device_kind: str, options: Options) -> Rule:
    """The stopping rule's numbers.

    15 s of steady steps know a median to 1 % on an idle GPU; in a short budget no probe may take
    more than a fiftieth of it. A CPU shares its cores with the rest of the machine: 2 %.
    """
    limit_s = min(15.0, max(2.0, options.budget_s / 50))
    on_cpu = device_kind == "cpu"
    return Rule(
        warmup_steps=3,
        warmup_tolerance=0.2 if on_cpu else 0.1,
        warmup_limit_s=limit_s,
        timed_steps=5,
        half_width=0.02 if on_cpu else 0.01,
        timed_limit_s=limit_s,
    )


class Prober:
    """Runs jobs, and knows what starting a group takes."""

    def __init__(
        self, space: Space, device_kind: str, clock: Clock, runner: Runner, rule: Rule
    ) -> None:
        self.rule = rule
        """When the probes' warm-up and timing stop."""
        self._space = space
        self._device_kind = device_kind
        self._clock = clock
        self._runner = runner
        self._starts_s: list[float] = []
        self._group_probe_s = 0.0
        self._heat_is_normal = False
        """Whether a probe ran hot as often as it was tried: then repeating helps none."""

    @property
    def start_s(self) -> float:
        """What starting a group takes."""
        return statistics.median(self._starts_s or [UNKNOWN_START_S])

    @property
    def owed(self) -> bool:
        """Whether the probes of the live group have not paid for its start yet."""
        started_s = self._starts_s[-1] if self._starts_s else 0.0
        return self._group_probe_s < PAY_BACK * started_s

    def restore(self, records: Sequence[Record]) -> None:
        """Know what earlier group starts took, from what came of their probes."""
        self._starts_s += [r.outcome.group_start_s for r in records if r.outcome.group_start_s]

    def measure(self, job: Job, predicted: Prediction, until_s: float) -> Outcome:
        """Run `job` until the machine leaves it in peace, or until it was tried often enough.

        `until_s` is on the budget's clock.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        started_s = self._clock.elapsed_s()
        outcome: Outcome | None = None
        start_s = warmup_s = timed_s = 0.0
        for attempt in itertools.count(1):
            began_s = self._clock.elapsed_s()
            result = self._runner.run(job, self._clock.at(until_s))
            took_s = self._clock.elapsed_s() - began_s
            start_s += self._note_group(result)
            again = self._outcome(job, result)
            warmup_s, timed_s = warmup_s + again.warmup_s, timed_s + again.timed_s
            outcome = again if outcome is None else _calmer(outcome, again)
            outcome = replace(outcome, attempts=attempt)
            if again.verdict.bounds_memory and result.warm and not job.fresh:
                job = replace(job, fresh=True)  # what the last probes left behind may be the cause
            elif (
                attempt >= ATTEMPTS
                or not self._disturbed(outcome)
                or self._clock.elapsed_s() + took_s > until_s
            ):
                break
        assert outcome is not None
        self._heat_is_normal |= attempt >= ATTEMPTS and self._hot(outcome)
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
            self._starts_s.append(result.group_start_s)
            self._group_probe_s = 0.0
        if result.report is not None:
            self._group_probe_s += result.report.warmup_s + result.report.timed_s
        return result.group_start_s

    def _disturbed(self, outcome: Outcome) -> bool:
        found = outcome.measurement
        if found is None or outcome.verdict.bounds_memory:
            return False
        busy = found.disturbed_share > DISTURBED_SHARE[self._device_kind]
        return busy or (self._hot(outcome) and not self._heat_is_normal)

    @staticmethod
    def _hot(outcome: Outcome) -> bool:
        found = outcome.measurement
        return found is not None and found.conditions.thermally_throttled

    def _outcome(self, job: Job, result: Result) -> Outcome:
        """What `result` means under this study's limits."""
        outcome = Outcome(
            verdict=result.verdict,
            reason=result.reason,
            parameters=result.parameters,
            versions=result.versions,
            peaks=result.peaks,
            lacks_op=result.lacks_op,
        )
        if result.report is None:
            return outcome
        found = self._measurement(job.candidate, result.report)
        state = state_bytes(self._space.workload, job.candidate)
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


def _calmer(first: Outcome, second: Outcome) -> Outcome:
    """Of two runs of one probe the one to keep: what is surer of memory, else the calmer one.

    The second was in a fresh group where memory was short in the first.
    """
    if first.verdict.bounds_memory or second.verdict.bounds_memory or first.measurement is None:
        return second
    if second.measurement is None:
        return first
    return min(first, second, key=lambda o: _disturbance(o.measurement))


def _disturbance(found: Measurement | None) -> tuple[bool, float]:
    assert found is not None
    return found.conditions.thermally_throttled, found.disturbed_share
