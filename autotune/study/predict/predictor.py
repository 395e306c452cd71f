"""Expected memory and speed of every candidate of a space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.result.earlier import Earlier, each_seen, points
from autotune.space.arrays import Array
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Outcome, Verdict
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.space.workload import Workload
from autotune.study.predict.belief import Belief, Off
from autotune.study.predict.fit import FitModel
from autotune.study.predict.memory import (
    MemoryModel,
    OutOf,
    Prediction,
    Within,
    device_memory,
    host_memory,
    more_base,
    on_rank,
)
from autotune.study.predict.speed import (
    ANOTHER_DAY,
    ANOTHER_SPACE,
    DRIFT,
    Magnitudes,
    SpeedModel,
    bent,
)
from autotune.wire.reports import Ran
from autotune.wire.stopping import Interval


class Predictor:
    """Peak memory and cost of a step; each outcome corrects them for all candidates."""

    def __init__(
        self,
        space: Space,
        device_kind: str,
        earlier: Sequence[Earlier] = (),
        *,
        known: Magnitudes | None = None,
        objective: Objective = "flops",
    ) -> None:
        """`earlier` studies may be of any space; `known` are the device's own magnitudes."""
        self._space = space
        self._device_kind = device_kind
        self._points = points(space, earlier)
        self._place = {candidate: i for i, candidate in enumerate(space.candidates)}
        self._own = slice(0, len(space.candidates))
        self.memory: MemoryModel | FitModel
        if space.workload.recorded:
            self.memory = FitModel(self._points, space.limits.capacity_bytes)
        else:
            self.memory = device_memory(self._points, device_kind)
        offloads = any(c.offload != "none" or c.checkpointing == "host" for c in space.candidates)
        # Without offload the host is the device, or holds nothing of note.
        self.host_memory = host_memory(self._points, device_kind) if offloads else None
        self._speed = SpeedModel(self._points, device_kind, known)
        self._cost = self._speed
        if objective == "tokens_per_joule":
            self._cost = SpeedModel(self._points, device_kind, known, of_energy=True)
        for place, (study, seen) in enumerate(each_seen(earlier), start=len(space.candidates)):
            self.memory.observe(place, seen.device_bytes, weighed=not study.timed)
            if self.host_memory is not None:
                self.host_memory.observe(place, seen.host_bytes)
            if study.timed:
                guess = bent(study.workload, seen.candidate)
                deviation = math.hypot(ANOTHER_DAY, guess.deviation if guess else 0.0)
                same = study.workload == space.workload and seen.candidate in self._place
                alone = 0.0 if same else ANOTHER_SPACE * self._speed.noise
                off = Off(study.folder, deviation, alone)
                self._observe(place, seen.step, seen.mean_power_w, seen.disturbed_share, off)

    def observe(
        self, candidate: Candidate, outcome: Outcome, *, final: bool = False, timed: bool = True
    ) -> None:
        """Learn from a trial or a final; only its memory if not `timed`."""
        place, found = self._place[candidate], outcome.measurement
        if found is not None:
            peak = found.peaks.device_bytes or Within(self._space.limits.capacity_bytes)
            self.memory.observe(place, peak)
            if self.host_memory is not None:
                self.host_memory.observe(place, found.peaks.host_bytes)
            off = DRIFT if final else bent(self._space.workload, candidate)
            if timed:
                step = found.cost_s.times(
                    _fewer_replicas(self._space.workload, candidate, found.ran)
                )
                self._observe(place, step, found.mean_power_w, found.disturbed_share, off)
                if isinstance(self.memory, FitModel):
                    self.memory.work(*self._speed.work)
        elif outcome.verdict == Verdict.OOM and not outcome.of_host:
            self.memory.observe(place, OutOf(self._space.limits.capacity_bytes))
        elif outcome.verdict == Verdict.OOM and self.host_memory is not None:
            self.host_memory.observe(place, OutOf(self._space.limits.host_capacity_bytes))

    def _observe(
        self, place: int, step: Interval, power_w: float | None, disturbed_share: float,
        off: Off | None,
    ) -> None:  # fmt: skip
        self._speed.observe(place, step, disturbed_share, off)
        if self._cost is not self._speed and power_w:
            self._cost.observe(place, step.times(power_w), disturbed_share, off)

    def trace(self, found: Trace) -> None:
        """Start from traced memory instead of closed forms; measurements are kept."""
        on_cpu = self._device_kind == "cpu"  # elsewhere the process is not on the device
        over = np.full(len(self._points), np.nan)
        traced = {
            place: candidate
            for place, (workload, candidate) in enumerate(self._points)
            if workload == self._space.workload and found.covers(self._space, candidate)
        }
        plain = found.over_state(replace(self._space, candidates=tuple(traced.values())))
        over[list(traced)] = [
            on_rank(self._space.workload, candidate, each, self._device_kind,
                    stay=found.asked.gradients_stay)
            for candidate, each in zip(traced.values(), plain, strict=True)
        ]  # fmt: skip
        base = 0.0
        if on_cpu:
            base = more_base(found.answer.base_bytes, self._space.workload.family)
        self.memory.trace(over, base)
        if self.host_memory is not None and on_cpu:  # host and devices are the same
            ranks = self._space.workload.ranks_on_a_node
            self.host_memory.trace(ranks * over, ranks * base)

    def peak(self, candidate: Candidate) -> Prediction:
        """The peak of `candidate` on the device, as it would be measured."""
        return self.memory.predict(self._place[candidate])

    def chance(self) -> Array:
        """The probability of each candidate's peaks to be within the limits."""
        limits = self._space.limits
        chance = self.memory.chance(limits.limit_bytes)
        if self.host_memory is not None:
            chance = np.minimum(chance, self.host_memory.chance(limits.host_limit_bytes))
        return chance[self._own]

    def expected_lost(self, candidates: Sequence[Candidate]) -> float:
        """How many of them will not fit, by these probabilities."""
        chance = self.chance()
        return float(sum(1 - chance[self._place[candidate]] for candidate in candidates))

    def draws(self, candidates: Sequence[Candidate], count: int) -> Array:
        """`count` draws of log costs of steps, by [draw][candidate]; alike for the same data."""
        mean, covariance = self._cost.joint([self._place[each] for each in candidates])
        rng = np.random.default_rng(0)
        return rng.multivariate_normal(mean, covariance, count, check_valid="ignore")

    def log_step_s(self, pending: Sequence[Candidate] = ()) -> Belief:
        """Logarithm of a step's seconds; `pending` candidates count as measured as expected."""
        return self._belief(self._speed, pending)

    def log_cost(self, pending: Sequence[Candidate] = ()) -> Belief:
        """Logarithm of a step's cost: seconds, or joules if the objective is of energy."""
        return self._belief(self._cost, pending)

    def cost_apart(self, place: int, pending: Sequence[Candidate] = ()) -> Array:
        """Standard deviation of each candidate's `log_cost`, less that of the one in `place`."""
        found = self._cost.apart(place, [self._place[each] for each in pending])
        return found[self._own]

    def _belief(self, of: SpeedModel, pending: Sequence[Candidate]) -> Belief:
        found = of.belief([self._place[each] for each in pending])
        return Belief(found.mean[self._own], found.deviation[self._own])


def _fewer_replicas(workload: Workload, candidate: Candidate, ran: Ran | None) -> float:
    """Factor from the step that `ran` to one with all samples that were asked for. More ranks of a
    script may share samples than was known. A global batch is reached anyway."""
    if ran is None or ran.data_parallel is None or workload.global_batch is not None:
        return 1.0
    return workload.replicas(candidate) / ran.data_parallel
