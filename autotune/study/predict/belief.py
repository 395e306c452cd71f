"""What is believed of one quantity over all candidates of a space: a Gaussian process.

The prior is a mean and a sum of covariance terms; each measurement corrects all candidates at
once. Source: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.space.arrays import Array, Codes

_SUPPOSED_NOISE = 1e-4
"""Variance of a supposed measurement, as a share of the prior's: nearly known."""


@dataclass(frozen=True)
class Term:
    """One possible error of the prior. Arrays have one entry per candidate.

    The covariance of two candidates is the product of their `scale`; 0 in different `group`s. It
    falls with the distance of their `position` (Matern 3/2, length 1).
    """

    scale: Array
    """Prior standard deviation, in the quantity's unit."""
    group: Codes | None = None
    """Candidates with the same number share the deviation; None for all."""
    position: Array | None = None
    """Places of the candidates on an axis, in lengths over which the deviation changes."""

    def covariance(self, index: int) -> Array:
        """The covariance of candidate `index` with all candidates."""
        found: Array = self.scale[index] * self.scale
        if self.group is not None:
            found = found * (self.group == self.group[index])
        if self.position is not None:
            distance = np.sqrt(3.0) * np.abs(self.position - self.position[index])
            found = found * ((1.0 + distance) * np.exp(-distance))
        return found


@dataclass(frozen=True)
class Variant:
    """Factors on the deviations of the prior and on the noise of measurements."""

    scale: float = 1.0
    noise: float = 1.0
    log_prior: float = 0.0


@dataclass(frozen=True)
class Belief:
    """Mean and deviation of a quantity for every candidate."""

    mean: Array
    deviation: Array
    """Standard deviation of the quantity, without the noise of measurements."""


@dataclass(frozen=True)
class Off:
    """A common error of some measurements."""

    together: str
    """The name that these measurements share."""
    deviation: float
    """Standard deviation, in the quantity's unit."""
    alone: float = 0.0
    """Standard deviation of each measurement's own error, beside its noise."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    index: int
    value: float
    noise_variance: float
    covariance: Array
    """Prior covariance of the measured candidate with all candidates."""
    off: Off | None


class _Whitened:
    """Observations under one variant, whitened: uncorrelated, with unit variance."""

    def __init__(self, variant: Variant, mean: Array, variance: Array) -> None:
        self.variant = variant
        self.mean = mean.copy()
        self.variance: Array = variant.scale**2 * variance
        self._rows: Array = np.empty((16, len(mean)))
        self.count = 0

    def add(self, covariance: Array, factor: Array, residual: float) -> None:
        """Add an observation: prior covariance with all, row of the factor, whitened residual."""
        if self.count == len(self._rows):
            more = np.empty((max(16, self.count), self._rows.shape[1]))
            self._rows = np.concatenate([self._rows, more])
        before = factor[: self.count] @ self._rows[: self.count]
        row = (self.variant.scale**2 * covariance - before) / factor[self.count]
        self._rows[self.count] = row
        self.count += 1
        self.mean += residual * row
        self.variance -= row**2

    def explained(self, index: int) -> Array:
        """The part of candidate `index`'s covariances that the observations explain."""
        rows = self._rows[: self.count]
        return np.asarray(rows[:, index] @ rows)

    def copy(self) -> _Whitened:
        made = copy.copy(self)
        made.mean, made.variance, made._rows = (
            self.mean.copy(), self.variance.copy(), self._rows[: self.count].copy(),
        )  # fmt: skip
        return made


class Beliefs:
    """A prior in several variants, the observations, and the posterior of all candidates.

    The likelihood of the observations chooses the variant. Source: Rasmussen & Williams, section
    5.4.1. A grid replaces the gradient, since there are few measurements and two numbers.
    """

    def __init__(self, mean: Array, terms: Sequence[Term], variants: Sequence[Variant]) -> None:
        self._mean = mean.astype(np.float64)
        self._variance: Array = np.sum([term.scale**2 for term in terms], axis=0)
        self._terms = tuple(terms)
        self._variants = tuple(variants)
        self._seen: list[_Seen] = []
        self._known: Belief | None = None
        self._likely: Variant | None = None
        self._whitened: _Whitened | None = None
        self._supposed: list[_Seen] = []
        """The last call's pending candidates, as supposed measurements."""
        self._believer: _Whitened | None = None
        """The posterior with them."""

    def observe(
        self, index: int, value: float, noise_variance: float, off: Off | None = None
    ) -> None:
        """Add a measurement of candidate `index`; its variance must be above 0."""
        self._seen.append(self._row(index, value, noise_variance, off))
        self._known = self._likely = None

    def joint(self, indices: Sequence[int]) -> tuple[Array, Array]:
        """Mean and covariance of those candidates."""
        belief, variant = self.belief(), self.likely
        prior = [
            np.sum([term.covariance(i)[list(indices)] for term in self._terms], axis=0)
            for i in indices
        ]
        covariance = variant.scale**2 * np.array(prior)
        if self._seen:
            factor, _ = self._factor(variant, self._seen)
            rows = np.array([each.covariance[list(indices)] for each in self._seen])
            explained = variant.scale**2 * np.linalg.solve(factor, rows)
            covariance -= explained.T @ explained
        return belief.mean[list(indices)], covariance

    def belief(self, pending: Sequence[int] = ()) -> Belief:
        """The posterior after all observations.

        `pending` candidates count as measured with the expected result. No mean changes, but
        similar candidates become surer (the "believer" of Ginsbourger et al., 2010).
        """
        if self._known is None:
            variant = self.likely
            if self._whitened is None or self._whitened.variant != variant:
                self._whitened = _Whitened(variant, self._mean, self._variance)
            self._known = self._posterior(self._whitened, self._seen)
            self._supposed, self._believer = [], None
        if not pending:
            return self._known
        # Mostly one more candidate is pending than before: the rows of the others are kept.
        before = [each.index for each in self._supposed]
        if self._believer is None or before != list(pending[: len(before)]):
            assert self._whitened is not None
            self._supposed, self._believer = [], self._whitened.copy()
        self._supposed += [
            self._row(i, float(self._known.mean[i]), _SUPPOSED_NOISE * float(self._variance[i]))
            for i in pending[len(self._supposed) :]
        ]
        return self._posterior(self._believer, [*self._seen, *self._supposed])

    def apart(self, index: int, pending: Sequence[int] = ()) -> Array:
        """Standard deviation of each candidate's difference to `index`, without common errors."""
        belief = self.belief(pending)
        known = self._believer if pending else self._whitened
        assert known is not None
        prior = np.sum([term.covariance(index) for term in self._terms], axis=0)
        shared = known.variant.scale**2 * prior - known.explained(index)
        variance = belief.deviation**2
        return np.asarray(np.sqrt((variance + variance[index] - 2 * shared).clip(0.0)))

    @property
    def likely(self) -> Variant:
        """The most likely variant for the measurements."""
        if self._likely is None:
            self._likely = max(self._variants, key=self._log_evidence)
        return self._likely

    def _row(
        self, index: int, value: float, noise_variance: float, off: Off | None = None
    ) -> _Seen:
        covariance: Array = np.sum([term.covariance(index) for term in self._terms], axis=0)
        return _Seen(
            index=index, value=value, noise_variance=noise_variance, covariance=covariance, off=off
        )

    def _posterior(self, known: _Whitened, seen: Sequence[_Seen]) -> Belief:
        """The posterior of `seen`, whose first ones are `known` already."""
        if seen[known.count :]:
            factor, residual = self._factor(known.variant, seen)
            for place in range(known.count, len(seen)):
                known.add(
                    seen[place].covariance, factor[place, : place + 1], float(residual[place])
                )
        return Belief(known.mean.copy(), np.sqrt(known.variance.clip(0.0)))

    def _factor(self, variant: Variant, seen: Sequence[_Seen]) -> tuple[Array, Array]:
        """Cholesky factor of the observations' covariance, and their whitened residuals."""
        at = [each.index for each in seen]
        prior = variant.scale**2 * np.array([each.covariance[at] for each in seen])
        noise = variant.noise**2 * np.array([each.noise_variance for each in seen])
        together = codes([each.off and each.off.together for each in seen])
        deviation = np.array([each.off.deviation if each.off else 0.0 for each in seen])
        shared = np.outer(deviation, deviation) * (together[:, None] == together)
        factor = np.asarray(np.linalg.cholesky(prior + shared + np.diag(noise)), dtype=np.float64)
        residual = np.array([each.value for each in seen]) - self._mean[at]
        return factor, np.asarray(np.linalg.solve(factor, residual), dtype=np.float64)

    def _log_evidence(self, variant: Variant) -> float:
        if not self._seen:
            return variant.log_prior
        factor, residual = self._factor(variant, self._seen)
        fit = -(residual @ residual) / 2 - np.log(np.diag(factor)).sum()
        return variant.log_prior + float(fit)


def codes(values: Sequence[object]) -> Codes:
    """A number for each distinct value, in order of appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp)


def normal_cdf(z: Array) -> Array:
    """Standard normal. Source: Abramowitz & Stegun (1964), 26.2.17; error under 1e-7."""
    t = 1 / (1 + 0.2316419 * np.abs(z))
    tail = (
        np.exp(-(z**2) / 2)
        / np.sqrt(2 * np.pi)
        * t
        * (
            0.319381530
            + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
        )
    )
    return np.asarray(np.where(z >= 0, 1 - tail, tail))
