"""What is believed of one quantity over all candidates, from draws of a model's parameters.

Each draw has a value for every candidate. What no draw explains is a Gaussian process, the same
for all draws. A measurement weighs the draws by their likelihood. Sources: Kennedy & O'Hagan,
Bayesian Calibration of Computer Models (2001); Rasmussen & Williams, Gaussian Processes for
Machine Learning (2006), algorithm 2.1; Lange, Little & Taylor, Robust Statistical Modeling Using
the t Distribution (1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.space.arrays import Array
from autotune.study.predict.belief import Belief, Off, Term, codes, normal_cdf

_FREEDOM = 2.0
"""Degrees of freedom of Student's t, by which a candidate differs from all that is expected."""
_ROUNDS = 4
"""Rounds in which the variances of that t are found."""
_MOST_OFF = 10.0
"""A candidate that is off by more deviations says no more of the others' deviation."""
_LEAST_WEIGHT = 1e-4
"""Draws with less of the largest weight are left out."""
_SUPPOSED_NOISE = 1e-8
"""Variance of a supposed measurement."""


@dataclass(frozen=True, kw_only=True)
class _Observation:
    index: int
    value: float
    noise_variance: float
    covariance: Array
    """Of the measured candidate with all, by the terms."""
    off: Off | None


@dataclass(frozen=True, kw_only=True)
class _Posterior:
    """Arrays end with one entry per candidate."""

    belief: Belief
    weights: Array
    means: Array
    """By [draw][candidate]."""
    beside: Array
    """Standard deviation beside the draws."""
    own: Array
    """Variance of each candidate alone, before the measurements."""
    rows: Array
    """What the measurements explain beside the draws, by [measurement][candidate]."""

    @property
    def apart(self) -> Array:
        """The draws' weighed differences from their mean."""
        return np.asarray(np.sqrt(self.weights)[:, None] * (self.means - self.belief.mean))


class Mixture:
    """Draws, weighed by measurements, and a Gaussian process beside them."""

    def __init__(
        self, draws: Array, terms: Sequence[Term], own: Array, weights: Array | None = None
    ) -> None:
        """`draws` are values by [draw][candidate]; `own` is the deviation of each alone."""
        self._draws, self._terms, self._own = draws, tuple(terms), own
        self._log_weights = np.log(np.ones(len(draws)) if weights is None else weights + 1e-12)
        self._variance: Array = np.sum([term.scale**2 for term in terms], axis=0)
        self._seen: list[_Observation] = []
        self._known: _Posterior | None = None

    def observe(
        self, index: int, value: float, noise_variance: float, off: Off | None = None
    ) -> None:
        """Add a measurement of candidate `index`; its variance must be above 0."""
        self._seen.append(_Observation(
            index=index, value=value, noise_variance=noise_variance, off=off,
            covariance=self._covariance(index),
        ))  # fmt: skip
        self._known = None

    def forget(self, index: int) -> None:
        """Drop the measurements of candidate `index`."""
        self._seen = [each for each in self._seen if each.index != index]
        self._known = None

    def bound(self, index: int, limit: float, *, above: bool, edge: float, wrong: float) -> None:
        """Learn on which side of the limit the value of candidate `index` is. Chance decides
        within a deviation of `edge`; with the probability `wrong` another reason decided."""
        deviation = np.sqrt(self._variance[index] + self._own[index] ** 2 + edge**2)
        z = (self._draws[:, index] - limit) / deviation
        chance = normal_cdf(z if above else -z)
        self._log_weights = self._log_weights + np.log(wrong + (1 - wrong) * chance)
        self._known = None

    def below(self, limit: float, edge: float) -> Array:
        """The probability of each candidate's value to be below the limit."""
        known = self._posterior
        return np.asarray(
            known.weights @ normal_cdf((limit - known.means) / np.hypot(known.beside, edge))
        )

    def belief(self, pending: Sequence[int] = ()) -> Belief:
        """The posterior. `pending` candidates count as measured with the expected result."""
        known = self._posterior.belief
        variance = known.deviation**2 - (self._supposed(pending) ** 2).sum(axis=0)
        return Belief(known.mean, np.sqrt(variance.clip(0.0)))

    def apart(self, index: int, pending: Sequence[int] = ()) -> Array:
        """Standard deviation of each candidate's difference to candidate `index`."""
        supposed = self._supposed(pending)
        shared = self._shared(index) - supposed[:, index] @ supposed
        variance = self.belief(pending).deviation ** 2
        return np.asarray(np.sqrt((variance + variance[index] - 2 * shared).clip(0.0)))

    def joint(self, indices: Sequence[int]) -> tuple[Array, Array]:
        """Mean and covariance of those candidates."""
        at = list(indices)
        covariance = np.array([self._shared(index)[at] for index in at])
        return self._posterior.belief.mean[at], covariance

    def _covariance(self, index: int) -> Array:
        return np.asarray(np.sum([term.covariance(index) for term in self._terms], axis=0))

    def _shared(self, index: int) -> Array:
        """Covariance of candidate `index` with all, after the measurements."""
        known = self._posterior
        found = self._covariance(index) - known.rows[:, index] @ known.rows
        found[index] += known.own[index]
        return np.asarray(found + known.apart[:, index] @ known.apart)

    def _supposed(self, pending: Sequence[int]) -> Array:
        """What supposed measurements explain, by [measurement][candidate]."""
        if not pending:
            return np.empty((0, self._draws.shape[1]))
        columns = np.array([self._shared(index) for index in pending])
        among = columns[:, list(pending)] + _SUPPOSED_NOISE * np.eye(len(pending))
        return np.asarray(np.linalg.solve(np.linalg.cholesky(among), columns))

    @property
    def _posterior(self) -> _Posterior:
        if self._known is None:
            self._known = self._weighed()
        return self._known

    def _weighed(self) -> _Posterior:
        """The posterior. What a candidate has alone is Student's t: a Gaussian whose variance is
        found again from what the draws leave to it, and to all that were measured."""
        seen, own = self._seen, self._own**2
        at = [each.index for each in seen]
        covariance = np.array([each.covariance for each in seen]).reshape(len(seen), len(own))
        deviation = np.array([each.off.deviation if each.off else 0.0 for each in seen])
        together = codes([each.off and each.off.together for each in seen])
        noise = np.outer(deviation, deviation) * (together[:, None] == together)
        noise += np.diag([each.noise_variance for each in seen])
        same = np.equal.outer(at, np.arange(len(own)))  # a candidate may be measured again
        residuals = np.array([each.value for each in seen])[:, None] - self._draws[:, at].T
        for left in reversed(range(_ROUNDS)):
            with_own = covariance + same * own
            factor = np.linalg.cholesky(with_own[:, at] + noise)
            white = np.linalg.solve(factor, residuals)
            log_weights = self._log_weights - (white**2).sum(axis=0) / 2
            weights = np.exp(log_weights - log_weights.max())
            weights /= weights.sum()
            if left:
                alone = own[:, None] * (same.T @ np.linalg.solve(factor.T, white))
                off = (alone**2 @ weights) / self._own**2
                measured = same.any(axis=0)
                of_all = off[measured].clip(0.0, _MOST_OFF**2).sum()
                alike = max(1.0, (_FREEDOM + of_all) / (_FREEDOM + measured.sum()))
                widened = (_FREEDOM * alike + off) / (_FREEDOM + 1)
                own = self._own**2 * np.where(measured, widened, alike)
        rows: Array = np.linalg.solve(factor, with_own).astype(np.float64)
        kept = weights > _LEAST_WEIGHT * weights.max()
        weights = weights[kept] / weights[kept].sum()
        means = self._draws[kept] + white[:, kept].T @ rows
        beside = (self._variance + own - (rows**2).sum(axis=0)).clip(0.0)
        mean = weights @ means
        variance = beside + weights @ (means - mean) ** 2
        return _Posterior(
            belief=Belief(mean, np.sqrt(variance)), weights=weights, means=means,
            beside=np.sqrt(beside), own=own, rows=rows,
        )  # fmt: skip
