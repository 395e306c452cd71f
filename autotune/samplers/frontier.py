"""Which candidate to measure next: the most expected gain for a second of probing.

Expected improvement over the incumbent (Jones et al., 1998) times the chance of fitting under the
ceiling (Gardner et al., 2014), per second of what the probe will take (Snoek et al., 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.options import Objective
from autotune.outcome import Outcome, Verdict, step_s_for
from autotune.predict.belief import Array, Belief, Codes, normal_cdf
from autotune.predict.memory import MemoryModel, host_memory
from autotune.predict.speed import SpeedModel
from autotune.space.space import Build, Candidate, Space

ENOUGH = 0.01
"""The search ends when no candidate is expected to gain more than this share."""
CAUTION = 0.8
"""A candidate with less chance of fitting is measured only if there is no other."""


@dataclass(frozen=True)
class Costs:
    """Seconds that a probe takes now."""

    live_build: Build | None = None
    start_s: float = 3.0
    """Of starting a group for a build that is not live."""
    probe_s: float = 2.0
    """Of warm-up and timed steps of a short step."""
    steps: int = 8
    """Steps that a probe runs at least."""


@dataclass(frozen=True)
class Proposal:
    """An open candidate and what is expected of it."""

    index: int
    gain: float
    """The largest improvement that is expected of any candidate, as a share of the incumbent's
    value; 1 while there is none."""


class Frontier:
    """Beliefs about all candidates, and the choice that follows from them."""

    def __init__(self, space: Space, kind: str, objective: Objective, memory: MemoryModel) -> None:
        self._space = space
        self._kind = kind
        self._index = {candidate: i for i, candidate in enumerate(space.candidates)}
        self.memory = memory
        offloads = any(c.offload != "none" for c in space.candidates)
        # Without offload the host holds what the devices hold, or nothing of note.
        self.host_memory = host_memory(space, kind) if offloads else None
        self.speed = SpeedModel(space, kind)
        one_step = [step_s_for(1.0, c, space.workload, objective) for c in space.candidates]
        self._work = np.log(one_step)
        self._builds = {build: i for i, build in enumerate(space.builds)}
        self._build_of = np.array([self._builds[c.build] for c in space.candidates])
        self._fitting: list[int] = []

    def trace(self, over: Array, more_base: float) -> None:
        """Start from traced memory instead of closed forms; see `memory.Parts.traced`."""
        self.memory.trace(over, more_base)
        if self.host_memory is not None and self._kind == "cpu":  # it holds what the devices do
            ranks = self._space.workload.world_size
            self.host_memory.trace(ranks * over, ranks * more_base)

    def observe(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from a finished trial."""
        self.memory.observe(candidate, outcome)
        if self.host_memory is not None:
            self.host_memory.observe(candidate, outcome)
        if outcome.measurement is not None:
            self.speed.observe(candidate, outcome.measurement)
        if outcome.verdict == Verdict.OK:
            self._fitting.append(self._index[candidate])

    def propose(self, allowed: Codes, pending: Sequence[Candidate], costs: Costs) -> Proposal:
        """The best of the `allowed` candidates, of which there must be one."""
        belief = self.speed.belief(pending)
        chance = self.memory.chance()[allowed]
        if self.host_memory is not None:
            chance = np.minimum(chance, self.host_memory.chance()[allowed])
        gain = self._gain(belief)[allowed] * chance
        seconds = self._seconds(costs, belief)[allowed]
        score = np.where(chance >= min(CAUTION, chance.max()), gain / seconds, -1.0)
        if self._fitting and gain.max() < ENOUGH:
            beside = np.isin(allowed, self._beside_incumbent()) & (chance >= CAUTION)
            if beside.any():
                first = int(beside.argmax())
                return Proposal(int(allowed[first]), ENOUGH)
        expected = float(gain.max()) if self._fitting else 1.0
        return Proposal(int(allowed[int(score.argmax())]), expected)

    def _beside_incumbent(self) -> list[int]:
        """What is next to the incumbent in micro_batch, in its build and length."""
        values = self._work - self.speed.belief().mean
        incumbent = self._space.candidates[max(self._fitting, key=lambda i: values[i])]
        same = [
            c for c in self._space.candidates
            if (c.build, c.seq_len) == (incumbent.build, incumbent.seq_len)
        ]  # fmt: skip
        place = same.index(incumbent)
        return [self._index[c] for c in same[max(0, place - 1) : place + 2] if c != incumbent]

    def _gain(self, belief: Belief) -> Array:
        """Expected improvement of every candidate as a share of the incumbent's value."""
        mean, deviation = self._work - belief.mean, np.maximum(belief.deviation, 1e-9)
        if not self._fitting:
            # Nothing to improve on: what is likely to be fast, however unsure.
            return np.asarray(np.exp(mean - mean.max()))
        best = max(mean[i] for i in self._fitting)
        z = (mean - best) / deviation
        ahead = np.exp(np.minimum(mean - best + deviation**2 / 2, 50.0))
        return np.asarray(ahead * normal_cdf(z + deviation) - normal_cdf(z)).clip(0.0)

    def _seconds(self, costs: Costs, belief: Belief) -> Array:
        step_s = np.exp(np.minimum(belief.mean, 10.0))
        seconds = np.maximum(costs.probe_s, costs.steps * step_s)
        live = self._builds.get(costs.live_build, -1) if costs.live_build else -1
        return np.asarray(seconds + np.where(self._build_of == live, 0.0, costs.start_s))
