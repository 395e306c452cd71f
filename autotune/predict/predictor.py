"""What is expected of every candidate of a space, all of it in one place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.outcome import Outcome
from autotune.predict.belief import Array, Belief
from autotune.predict.memory import Prediction, device_memory, host_memory, more_base
from autotune.predict.speed import SpeedModel
from autotune.predict.trace import Trace
from autotune.space.candidate import Candidate
from autotune.space.space import Space


class Predictor:
    """Peak memory and step time; each outcome corrects them for all candidates."""

    def __init__(self, space: Space, device_kind: str) -> None:
        self._space = space
        self._device_kind = device_kind
        self.memory = device_memory(space, device_kind)
        offloads = any(c.offload != "none" for c in space.candidates)
        # Without offload the host holds what the devices hold, or nothing of note.
        self.host_memory = host_memory(space, device_kind) if offloads else None
        self._speed = SpeedModel(space, device_kind)

    def observe(self, candidate: Candidate, outcome: Outcome, *, final: bool = False) -> None:
        """Learn from a trial, or from a final, that ended."""
        self.memory.observe(candidate, outcome)
        if self.host_memory is not None:
            self.host_memory.observe(candidate, outcome)
        if outcome.measurement is not None:
            self._speed.observe(candidate, outcome.measurement, final=final)

    def trace(self, found: Trace) -> None:
        """Start from traced memory instead of closed forms; what was observed is kept."""
        on_cpu = self._device_kind == "cpu"  # elsewhere the process is not on the device
        over = found.over_state(self._space)
        base = more_base(found.answer.base_bytes) if on_cpu else 0.0
        self.memory.trace(over, base)
        if self.host_memory is not None and on_cpu:  # it holds what the devices do
            ranks = self._space.workload.world_size
            self.host_memory.trace(ranks * over, ranks * base)

    def peak(self, candidate: Candidate) -> Prediction:
        """The peak of `candidate` on the device, as it would be measured."""
        return self.memory.predict(candidate)

    def chance(self) -> Array:
        """Probability of each candidate that its peaks keep within the limits."""
        chance = self.memory.chance()
        if self.host_memory is not None:
            chance = np.minimum(chance, self.host_memory.chance())
        return chance

    def draws(self, candidates: Sequence[Candidate], count: int) -> Array:
        """`count` times the logarithms of the seconds of `candidates`' steps, as they may be.

        By [draw][candidate]; the same for the same observations.
        """
        mean, covariance = self._speed.joint(candidates)
        rng = np.random.default_rng(0)
        return rng.multivariate_normal(mean, covariance, count, check_valid="ignore")

    def log_step_s(self, pending: Sequence[Candidate] = ()) -> Belief:
        """Logarithm of the seconds of a step, where `pending` ones come out as expected."""
        return self._speed.belief(pending)
