"""Predicted peaks of runs of an unknown model, on any axes, in the logarithm.

They are learned from recorded peaks, or only from whether memory ran out. The latter bounds a peak
on one side. A Gaussian with the same mean and variance replaces its probit likelihood:
assumed-density filtering (Minka, 2001; Rasmussen & Williams, section 3.6). Slopes are orders of
magnitude: ZeRO (arXiv 1910.02054), activations with tensor and pipeline parallelism
(arXiv 2205.05198).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.traits import Trait, traits
from autotune.study.predict.belief import Beliefs, Term, Variant, codes, normal_cdf
from autotune.study.predict.memory import OutOf, Prediction, Within

_MIDDLE = 1.3
"""Share of the capacity that the middle point is assumed to need, so points that surely fit come
first. This and the deviations were chosen on the sweeps of results/sweeps.md."""
_MIDDLE_OFF = 0.5
"""All deviations are of the logarithm."""
_SLOPES = {
    "tokens": (0.55, 0.2),
    "tp": (-0.75, 0.2),
    "pp": (-0.5, 0.2),
    "cp": (-0.5, 0.2),
    "ep": (-0.3, 0.2),
    "depth": (0.7, 0.2),
}
"""Slope of a peak over an axis, both in the logarithm; and the slope's deviation."""
_UNKNOWN_SLOPE = (0.0, 0.2)
_WORDS = {
    ("checkpointing", "full"): -0.6,
    ("checkpointing", "selective"): -0.3,
    ("zero_stage", 1): -0.2,
    ("zero_stage", 2): -0.3,
    ("zero_stage", 3): -0.4,
    ("offload", "optimizer"): -0.3,
    ("offload", "all"): -0.5,
}
_WORDS_OFF = 0.3
_BUILD_OFF = 0.05
_EDGE = 0.04
"""Closer than this share to the capacity, chance decides whether memory runs out."""
_NOISE = 0.012
_NORMAL = NormalDist()


class FitModel:
    """Peak bytes of all points, from nothing but their axes."""

    def __init__(self, points: Sequence[Point], capacity_bytes: int) -> None:
        found = traits([candidate for _, candidate in points])
        tokens = Trait("tokens", [candidate.tokens for _, candidate in points])
        ones = np.ones(len(points))
        mean = math.log(_MIDDLE * capacity_bytes) * ones
        terms = [Term(_MIDDLE_OFF * ones)]
        for trait in [tokens, *(t for t in found if t.name not in ("micro_batch", "seq_len"))]:
            words = np.array([_WORDS.get((trait.name, value), 0.0) for value in trait.values])
            if trait.position is not None and not words.any():
                slope, off = _SLOPES.get(trait.name, _UNKNOWN_SLOPE)
                mean = mean + slope * trait.position
                terms.append(Term(off * trait.position))
            else:
                mean = mean + words - words.mean()
                terms.append(Term(_WORDS_OFF * ones, group=trait.codes))
        builds = codes([candidate.build for _, candidate in points])
        self._beliefs = Beliefs(mean, [*terms, Term(_BUILD_OFF * ones, group=builds)], [Variant()])

    def trace(self, over: Array, more_base: float) -> None:
        """Nothing to do: recorded runs are not traced."""

    def observe(self, place: int, peak: float | OutOf | Within, *, weighed: bool = False) -> None:
        """Learn the peak of the point in that `place`: bytes, or its side of the capacity."""
        if not isinstance(peak, OutOf | Within):
            self._beliefs.observe(place, math.log(peak), _NOISE**2)
            return
        belief = self._beliefs.belief()
        mean, variance = belief.mean[place], belief.deviation[place] ** 2
        side = 1.0 if isinstance(peak, OutOf) else -1.0
        spread = math.sqrt(variance + _EDGE**2)
        z = side * (mean - math.log(peak.capacity_bytes)) / spread
        ratio = _NORMAL.pdf(z) / max(_NORMAL.cdf(z), 1e-9)
        left = 1 - variance / spread**2 * ratio * (ratio + z)
        if left < 1 - 1e-6:  # else the observation says nothing new
            site = variance * left / (1 - left)
            moved = side * variance * ratio / spread
            self._beliefs.observe(place, float(mean + moved / (1 - left)), float(site))

    def predict(self, place: int, z: float = 1.96) -> Prediction:
        """The peak of the point in that `place`, with an interval of `z` standard deviations."""
        belief = self._beliefs.belief()
        mean, off = belief.mean[place], z * math.hypot(belief.deviation[place], _NOISE)
        low, middle, high = (
            int(math.exp(min(each, 40.0))) for each in (mean - off, mean, mean + off)
        )
        return Prediction(middle, low, high)

    def chance(self, limit_bytes: int) -> Array:
        """The probability of each point's peak to be within the limit."""
        belief = self._beliefs.belief()
        off = np.hypot(belief.deviation, _EDGE)
        return normal_cdf((math.log(limit_bytes) - belief.mean) / off)
