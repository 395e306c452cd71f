"""What is believed of one quantity over all candidates of a space: a Gaussian process.

The prior is a mean and a sum of covariance terms; each measurement corrects all candidates at
once. Source: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), section 2.2;
the update is one row of the Cholesky factor of algorithm 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Term:
    """One thing that may be off, and by how much. Arrays have one entry per candidate.

    Between two candidates its covariance is the product of their `scale`, 0 where they are of
    different `group`, and falls with the distance of their `position` (Matern 3/2, length 1).
    """

    scale: Array
    """Prior standard deviation, in the quantity's unit."""
    group: Codes | None = None
    """What shares the deviation; None for all candidates."""
    position: Array | None = None
    """Where on an axis a candidate is, in lengths over which the deviation changes."""

    def covariance(self, index: int) -> Array:
        """Of candidate `index` with all of them."""
        found: Array = self.scale[index] * self.scale
        if self.group is not None:
            found = found * (self.group == self.group[index])
        if self.position is not None:
            distance = np.sqrt(3.0) * np.abs(self.position - self.position[index])
            found = found * ((1.0 + distance) * np.exp(-distance))
        return found


class Belief:
    """Mean and variance of each candidate, given what was observed."""

    def __init__(self, mean: Array, terms: Sequence[Term]) -> None:
        self.mean = mean.astype(np.float64)
        self.variance = np.sum([term.scale**2 for term in terms], axis=0)
        self.log_evidence = 0.0
        """Logarithm of the density that this belief gave to what was observed."""
        self._terms = tuple(terms)
        self._factor: list[Array] = []

    def observe(self, index: int, value: float, noise_variance: float) -> None:
        """Correct every candidate by a measurement of one; its variance must be above 0."""
        covariance = np.sum([term.covariance(index) for term in self._terms], axis=0)
        for row in self._factor:
            covariance -= row[index] * row
        spread = float(np.sqrt(covariance[index] + noise_variance))
        row = covariance / spread
        surprise = (value - self.mean[index]) / spread
        self.log_evidence -= surprise**2 / 2 + float(np.log(spread))
        self.mean = self.mean + row * surprise
        self.variance = np.maximum(self.variance - row**2, 0.0)
        self._factor.append(row)

    def supposing(self, index: int) -> Belief:
        """This belief once candidate `index` were known: as it is expected, but surer.

        Used for trials that still run (the "believer" of Ginsbourger et al., 2010).
        """
        supposed = Belief.__new__(Belief)
        supposed.mean, supposed.variance = self.mean, self.variance
        supposed.log_evidence = self.log_evidence
        supposed._terms, supposed._factor = self._terms, list(self._factor)
        supposed.observe(
            index, float(self.mean[index]), 1e-4 * float(self.variance[index]) + 1e-30
        )
        return supposed

    @property
    def deviation(self) -> Array:
        """Standard deviation of each candidate."""
        found: Array = np.sqrt(self.variance)
        return found


@dataclass(frozen=True)
class Variant:
    """A prior that is off by this much more, and measurements that are this much noisier."""

    scale: float = 1.0
    noise: float = 1.0
    log_prior: float = 0.0


class Beliefs:
    """The same belief under several variants of its prior; what is observed chooses among them.

    Source: Rasmussen & Williams (2006), section 5.4.1; a grid instead of a gradient, since there
    are few measurements and two numbers.
    """

    def __init__(self, mean: Array, terms: Sequence[Term], variants: Sequence[Variant]) -> None:
        self._variants = [
            (each, Belief(mean, [replace(t, scale=each.scale * t.scale) for t in terms]))
            for each in variants
        ]

    def observe(self, index: int, value: float, noise_variance: float) -> None:
        """Correct every variant by a measurement of candidate `index`."""
        for variant, belief in self._variants:
            belief.observe(index, value, variant.noise**2 * noise_variance)

    @property
    def likely(self) -> tuple[Variant, Belief]:
        """The variant that what was observed speaks for."""
        return max(self._variants, key=lambda each: each[0].log_prior + each[1].log_evidence)
