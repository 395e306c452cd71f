"""Predicted peaks of runs of an unknown model, on any axes: in the logarithm, from peaks that were
recorded, or from no more than whether the memory ran out.

Whether it ran out is one half of the line that a peak is on. Its probit likelihood is replaced by
the Gaussian that leaves the same mean and variance: assumed-density filtering (Minka, 2001;
Rasmussen & Williams, section 3.6). Slopes are orders of magnitude: ZeRO (arXiv 1910.02054),
activations with tensor and pipeline parallelism (arXiv 2205.05198).
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
"""Of the capacity, that the peak in the middle is taken for: what surely fits comes first. It and
the deviations were chosen on the sweeps of results/sweeps.md."""
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
"""By how much the logarithm of a peak grows with that of an axis, and the deviation of this."""
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
"""Within this of the capacity it is luck whether memory runs out."""
_NOISE = 0.012
_NORMAL = NormalDist()


class FitModel:
    """Peak bytes of all points, of which nothing is known but their axes."""

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
        """Nothing is traced of what others ran."""

    def observe(self, place: int, peak: float | OutOf | Within, *, weighed: bool = False) -> None:
        """Learn the peak of the point in that `place`, in bytes, or on which side of the capacity
        it is."""
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
        if left < 1 - 1e-6:  # else it was known
            site = variance * left / (1 - left)
            moved = side * variance * ratio / spread
            self._beliefs.observe(place, float(mean + moved / (1 - left)), float(site))

    def predict(self, place: int, z: float = 1.96) -> Prediction:
        """The peak of the point in that `place`, and what lies within `z` standard deviations."""
        belief = self._beliefs.belief()
        mean, off = belief.mean[place], z * math.hypot(belief.deviation[place], _NOISE)
        low, middle, high = (
            int(math.exp(min(each, 40.0))) for each in (mean - off, mean, mean + off)
        )
        return Prediction(middle, low, high)

    def chance(self, limit_bytes: int) -> Array:
        """Probability of each point that its peak keeps within the limit."""
        belief = self._beliefs.belief()
        off = np.hypot(belief.deviation, _EDGE)
        return normal_cdf((math.log(limit_bytes) - belief.mean) / off)
