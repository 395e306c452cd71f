"""One probe: run again until the machine leaves it in peace."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import NoNodesError
from autotune.measure.runner import Job, Result, Runner
from autotune.space.options import Options
from autotune.space.outcome import (
    DISTURBED_DEVICE_SHARE,
    DISTURBED_SHARE,
    Measurement,
    Outcome,
    Verdict,
)
from autotune.space.space import Space
from autotune.study.attempts import Next, Probed, Tally, after
from autotune.study.judging import Judge
from autotune.study.predict.memory import Prediction
from autotune.wire.budget import Clock
from autotune.wire.emulated import emulating
from autotune.wire.stopping import Rule

ATTEMPTS = 3
"""The most runs of one probe that the machine keeps disturbing."""
REPEATS_SHARE = 0.05
"""The share of the budget for the disturbed runs of one candidate."""
BUSY, HEAT, MEMORY = "busy", "heat", "memory"
FOREIGN_SHARE = 0.01
"""The share of the capacity by which others' memory may change in a probe."""
SUSTAIN_S, FINAL_S, FULL_BUDGET_S = 3.0, 10.0, 600.0
"""On CUDA: seconds of steps before a group is first timed, seconds of timing in a final, and the
budget for both. Smaller budgets have less, in proportion."""
EMULATED_S = 1.0
"""Most seconds of timing on an emulated device, whose time is a model's."""
ENERGY_S = {"cpu": 0.5, "cuda": 3.0}
"""The least seconds of timing for energy: a GPU's counter moves ten times a second."""
PAY_BACK = 2.0
"""A group stays up until its probes took this many times its start."""


def most_s(options: Options) -> float:
    """Seconds that a probe is timed on a real device, at most."""
    return min(15.0, max(2.0, options.limits.budget_s / 50))


def rule_for(device_kind: str, options: Options, *, final: bool = False) -> Rule:
    """The stopping rule's numbers.

    15 s of steady steps give a median to 1 % on an idle GPU. In a short budget a probe takes at
    most a fiftieth of it. A CPU shares its cores with the rest of the machine: 2 %. A GPU's clocks
    fall under load: a group runs before it is timed, and finals are timed for long. The clocks of
    emulated GPUs do not fall.
    """
    on_cpu = device_kind == "cpu"
    emulated = emulating() and not on_cpu
    limit_s = EMULATED_S if emulated else most_s(options)
    steady = on_cpu or emulated
    scale = 0.0 if steady else min(1.0, options.limits.budget_s / FULL_BUDGET_S)
    energy_s = ENERGY_S[device_kind] if options.search.objective == "tokens_per_joule" else 0.0
    # A step of a mix of lengths is a cycle of many.
    several = options.space.length_mix or len(options.model.image_size or ()) > 1
    cycles = final and bool(several)
    return Rule(
        warmup_steps=2 if cycles else 3,
        warmup_tolerance=0.2 if on_cpu else 0.1,
        warmup_limit_s=limit_s,
        timed_steps=3 if cycles else 5,
        half_width=0.02 if on_cpu else 0.01,
        timed_limit_s=limit_s,
        sustain_s=scale * SUSTAIN_S,
        timed_least_s=scale * FINAL_S if final else 0.0,
        energy_s=energy_s,
    )


class Prober:
    """Runs the jobs of one slot."""

    def __init__(
        self, space: Space, device_kind: str, clock: Clock, runner: Runner, options: Options
    ) -> None:
        self._judge = Judge(space, options.search.objective)
        self._calm_share = DISTURBED_SHARE[device_kind]
        self._clock = clock
        self._runner = runner
        self._little = FOREIGN_SHARE * space.limits.capacity_bytes
        self._last_start_s = 0.0
        self._group_probe_s = 0.0
        self._normal: set[str] = set()
        """Disturbances in every attempt at a probe: a repeat does not avoid them."""

    @property
    def owed(self) -> bool:
        """Whether the probes of the live group have not paid for its start yet."""
        return self._group_probe_s < PAY_BACK * self._last_start_s

    def measure(
        self, job: Job, predicted: Prediction, until_s: float, attempts: int = ATTEMPTS
    ) -> Probed:
        """Run `job` until the machine leaves it in peace, or until `attempts` were made.

        `until_s` is on the budget's clock. Raises StopRequestedError if the user asked to stop.
        """
        tally = Tally(started_s=self._clock.elapsed_s())
        repeats_until_s = tally.started_s + REPEATS_SHARE * self._clock.budget_s
        step = Next.AGAIN
        while step is not Next.END:
            began_s = self._clock.elapsed_s()
            last = len(tally.results) + 1 >= attempts or began_s > repeats_until_s
            calm = 1.0 if last or BUSY in self._normal else self._calm_share
            job = replace(job, rule=replace(job.rule, calm=calm))
            try:
                result = self._runner.run(job, self._clock.at(until_s))
            except NoNodesError as error:
                result, tally.ran = _gone(str(error)), False
            took_s = self._clock.elapsed_s() - began_s - result.waited_s
            repeats_until_s += result.waited_s
            self._note_group(result)
            seen = self._judge.outcome(job, result)
            tally.add(result, seen, self._calmer(tally.kept, seen))
            step = after(
                warm_memory=seen.verdict.bounds_memory
                and result.warm
                and not job.fresh
                and attempts > 1,
                over=result.put_off
                or len(tally.results) >= attempts
                or self._clock.elapsed_s() + took_s > min(until_s, repeats_until_s),
                disturbed=bool(self._disturbances(tally.outcome, result) - self._normal),
                others_memory=MEMORY in self._disturbances(seen, result),
            )
            job = replace(job, fresh=job.fresh or step is Next.FRESH)
        self._learn_normal(tally, result)
        return tally.probed(self._clock.elapsed_s(), predicted)

    def _learn_normal(self, tally: Tally, last: Result) -> None:
        """Learn which disturbances stay however often a probe is repeated."""
        found = self._disturbances(tally.outcome, last)
        if len(tally.results) > 1:
            self._normal |= found
        elif tally.outcome.measurement is not None:
            self._normal &= found | {HEAT}

    def _note_group(self, result: Result) -> None:
        """Learn whether the live group has paid for its start."""
        if result.group_start_s:
            self._last_start_s, self._group_probe_s = result.group_start_s, 0.0
        if result.report is not None:
            self._group_probe_s += result.report.warmup_s + result.report.timed_s

    def _disturbances(self, outcome: Outcome, last: Result) -> set[str]:
        found = outcome.measurement
        if found is None or outcome.verdict.bounds_memory:
            report = last.report
            foreign = 0 if report is None else report.conditions.foreign_bytes
            return {MEMORY} if max(last.foreign_bytes, foreign) > self._little else set()
        on_device = found.conditions.others_share or 0.0
        busy = found.disturbed_share > self._calm_share or on_device > DISTURBED_DEVICE_SHARE
        hot = found.conditions.thermally_throttled
        memory = found.conditions.foreign_bytes > self._little
        seen = {BUSY: busy, HEAT: hot, MEMORY: memory}
        return {name for name, is_so in seen.items() if is_so}

    def _calmer(self, first: Outcome | None, second: Outcome) -> Outcome:
        """The attempt to keep: the surer about memory, as in a fresh group, else the calmer."""
        if first is None:
            return second
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


def _gone(why: str) -> Result:
    """The result of a slot on which nothing can run any more."""
    return Result(verdict=Verdict.SKIPPED, reason=why, put_off=True, gone=why)
