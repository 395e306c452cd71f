"""Proposes the candidate with the most expected gain for a second of probing.

The gain is expected improvement (Jones et al., 1998) times the chance of fitting (Gardner et al.,
2014). It counts per second of the probe (Snoek et al., 2012). Common errors of a candidate and the
incumbent cancel out of the improvement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial

from autotune.result.folder.ask import Ask, Costs
from autotune.result.folder.sampler import Sampler
from autotune.space.arrays import Array
from autotune.space.candidate import Build, Candidate
from autotune.space.outcome import Objective, step_cost_for
from autotune.space.space import Space
from autotune.study.predict.belief import Belief, normal_cdf
from autotune.study.predict.predictor import Predictor

ENOUGH, ENOUGH_RECORDED = 0.01, 0.003
"""The search ends if no candidate is expected to gain more than this share; the same among runs
that others recorded, whose model nobody told."""
CAUTION = 0.8
"""A candidate with less chance of fitting is measured only if no other is expected to gain."""
UNLIKELY = 0.3
"""If no candidate has that chance, the likeliest comes first, if it has at least this one. Else a
tight space would be given up with its budget unspent."""


@dataclass(frozen=True)
class Proposal:
    """An open candidate and its expected gain."""

    place: int
    """Its index in the space."""
    gain: float
    """The largest expected improvement, as a share of the incumbent's value; 1 without one."""


class Frontier(Sampler):
    """Goes by the predictions for all candidates."""

    def __init__(self, space: Space, predictor: Predictor, objective: Objective) -> None:
        self._space = space
        self._predictor = predictor
        self._place = {candidate: i for i, candidate in enumerate(space.candidates)}
        one_step = [step_cost_for(1.0, c, space.workload, objective) for c in space.candidates]
        self._work = np.log(one_step)
        builds = {build: i for i, build in enumerate(space.builds)}
        self._builds = builds
        self._build_of = np.array([builds[c.build] for c in space.candidates])
        self._length_of = np.array([c.seq_len for c in space.candidates])
        self._alike = _Alike(space)
        self._enough = ENOUGH_RECORDED if space.workload.recorded else ENOUGH

    def propose(self, ask: Ask, optuna_study: OptunaStudy, trial: FrozenTrial) -> int:
        return self.best(ask).place

    def why_stop(self, ask: Ask) -> str | None:
        if self.best(ask).gain >= self._enough:
            return None
        return f"no candidate is expected to gain {100 * self._enough:g}%"

    def best(self, ask: Ask) -> Proposal:
        """The best of the allowed candidates."""
        belief = self._predictor.log_cost(ask.pending)
        seconds = self._predictor.log_step_s(ask.pending)
        fitting = [self._place[candidate] for candidate in ask.fitting]
        chance = self._predictor.chance()[ask.allowed]
        gain = self._gain(belief, fitting, ask.pending)[ask.allowed] * chance
        per_s = gain / self._seconds(ask.costs, seconds)[ask.allowed]
        most = chance.max()
        likely = chance >= (min(CAUTION, most) if most >= UNLIKELY or not fitting else CAUTION)
        if not fitting:
            return Proposal(int(ask.allowed[np.where(likely, per_s, -1.0).argmax()]), 1.0)
        # Of runs without peaks, only what is near the limit tells where it is.
        sure = ask.least_chance if self._space.workload.recorded else CAUTION
        beside = np.isin(ask.allowed, self._beside_incumbent(fitting)) & (chance >= sure)
        possible = chance >= ask.least_chance
        worth = gain >= ENOUGH
        # The likely ones first: each makes the others' memory surer.
        for among in (likely & worth, beside, possible & worth, likely & (gain >= self._enough)):
            if among.any():
                place = int(np.where(among, per_s, -1.0).argmax())
                return Proposal(int(ask.allowed[place]), max(self._enough, float(gain[place])))
        return Proposal(int(ask.allowed[per_s.argmax()]), float(gain[likely].max(initial=0.0)))

    def _beside_incumbent(self, fitting: Sequence[int]) -> list[int]:
        """The candidates next to the incumbent in micro_batch, in its build and length."""
        values = self._work - self._predictor.log_cost().mean
        incumbent = max(fitting, key=lambda i: values[i])
        same = np.flatnonzero(
            (self._build_of == self._build_of[incumbent])
            & (self._length_of == self._length_of[incumbent])
        )  # ascending in micro_batch
        place = int(np.searchsorted(same, incumbent))
        return [int(i) for i in same[max(0, place - 1) : place + 2] if i != incumbent]

    def _gain(self, belief: Belief, fitting: Sequence[int], pending: Sequence[Candidate]) -> Array:
        """Expected improvement of every candidate as a share of the incumbent's value."""
        mean = self._work - belief.mean
        if not fitting:
            # Without an incumbent the fastest by the mean comes first, however unsure.
            return np.asarray(np.exp(mean - mean.max()))
        incumbent = max(fitting, key=lambda i: mean[i])
        best = mean[incumbent]
        deviation = np.maximum(self._predictor.cost_apart(incumbent, pending), 1e-9)
        z = (mean - best) / deviation
        ahead = np.exp(np.minimum(mean - best + deviation**2 / 2, 50.0))
        return np.asarray(ahead * normal_cdf(z + deviation) - normal_cdf(z)).clip(0.0)

    def _seconds(self, costs: Costs, belief: Belief) -> Array:
        step_s = np.exp(np.minimum(belief.mean, 10.0))
        seconds = np.maximum(costs.probe_s, costs.steps * step_s)
        start_s = self._alike.each(costs.start_s)
        if (live := costs.live_build) in self._builds:
            start_s[self._builds[live]] = costs.compile_s(live)
        return np.asarray(seconds + start_s[self._build_of])


class _Alike:
    """Builds with the same start time: those of one stage and one kind of compiling."""

    def __init__(self, space: Space) -> None:
        kinds = [(build.zero_stage, build.compile) for build in space.builds]
        self._one_of = dict(zip(kinds, space.builds, strict=True))
        places = {kind: i for i, kind in enumerate(self._one_of)}
        self._kind_of = np.array([places[kind] for kind in kinds])

    def each(self, start_s: Callable[[Build], float]) -> Array:
        """Seconds of each build of the space."""
        found = np.array([start_s(build) for build in self._one_of.values()])
        each: Array = found[self._kind_of]
        return each


def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Frontier:
    return Frontier(space, predictor, objective)
