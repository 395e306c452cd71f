"""Moves the proposals of one of Optuna's samplers to the nearest candidate that is allowed.

The sampler knows ranges, not which of their points are valid or measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial

from autotune.result.folder.ask import Ask
from autotune.result.folder.sampler import Sampler, distributions, params
from autotune.space.space import Space


class Nearest(Sampler):
    """Optuna's sampler ignores the cost of a group's start, so it is asked for four at a time."""

    round = 4
    base: BaseSampler

    def __init__(self, space: Space, base: BaseSampler) -> None:
        self.base = base
        self._distributions = distributions(space)
        self._points = np.array([self._point(params(c)) for c in space.candidates])

    def propose(self, ask: Ask, optuna_study: OptunaStudy, trial: FrozenTrial) -> int:
        proposal = self._proposal(optuna_study, trial)
        distance = np.abs(self._points[ask.allowed] - self._point(proposal)).sum(axis=1)
        return int(ask.allowed[distance.argmin()])

    def _proposal(self, optuna_study: OptunaStudy, trial: FrozenTrial) -> dict[str, Any]:
        relative = self.base.infer_relative_search_space(optuna_study, trial)
        proposal = self.base.sample_relative(optuna_study, trial, relative)
        for name, distribution in self._distributions.items():
            if name not in proposal:
                proposal[name] = self.base.sample_independent(
                    optuna_study, trial, name, distribution
                )
        return proposal

    def _point(self, params: dict[str, Any]) -> list[float]:
        """A point in which each numeric axis is 0 to 1 long and other categories are 1 apart."""
        point: list[float] = []
        for name, distribution in self._distributions.items():
            if isinstance(distribution, IntDistribution):
                low, high, at = map(
                    float, (distribution.low, distribution.high, int(params[name]))
                )
                if distribution.log:
                    low, high, at = np.log([low, high, at])
                point.append((at - low) / ((high - low) or 1.0))
            elif isinstance(distribution, CategoricalDistribution):
                # Half on each of the two coordinates that differ: 1 in sum.
                point += [0.5 * (params[name] == choice) for choice in distribution.choices]
        return point
