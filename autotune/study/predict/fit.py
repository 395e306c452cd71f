"""Predicted peaks of runs of an unknown model, on any axes, in the logarithm.

They are learned from recorded peaks, or only from whether memory ran out. The latter bounds a peak
on one side. A Gaussian with the same mean and variance replaces its probit likelihood:
assumed-density filtering (Minka, 2001; Rasmussen & Williams, section 3.6). What is expected comes
from `sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.axes import DEGREES
from autotune.space.traits import traits
from autotune.study.predict.belief import Beliefs, Off, Term, Variant, codes, normal_cdf
from autotune.study.predict.memory import OutOf, Prediction, Within
from autotune.study.predict.sweep import Sweep

_DEGREE_OFF, _NUMBER_OFF, _STAGE_OFF = 0.2, 0.2, 0.2
"""How far the logarithm of a peak may be off: with that of a degree, of another number, and by
stage. These and the other deviations were chosen on
the sweeps of results/sweeps.md, and on made up ones."""
_WORDS = {
    ("offload", "optimizer"): -0.3,
    ("offload", "all"): -0.5,
}
_TOKENS_OFF = 0.1
"""The same along the tokens of a micro-step."""
_DEPTH_SLOPE = 0.7
_KNOWN = ("zero_stage", "offload", "checkpointing")
_WORDS_OFF = 0.3
_BUILD_OFF, _RUN_OFF = 0.06, 0.1
_EDGE = 0.04
"""Closer than this share to the capacity, chance decides whether memory runs out."""
_NOISE = 0.012
_FLOPS_PER_S, _FLOPS_OFF, _RATE_OFF = 4e14, 0.8, 0.2
"""Of a GPU without anything that a step waits for, by order of magnitude; and deviations, of all
runs and of one."""
_NORMAL = NormalDist()


class FitModel:
    """Peak bytes of all points, from nothing but their axes."""

    def __init__(self, points: Sequence[Point], capacity_bytes: int) -> None:
        self._sweep, self._size = Sweep(points), len(points)
        mean, ways = self._sweep.peaks(capacity_bytes)
        tokens = np.log([candidate.tokens for _, candidate in points])
        terms = [Term(way) for way in ways]
        terms.append(Term(_TOKENS_OFF * self._with_size(tokens - tokens.mean())))
        ones = self._with_size(np.ones(len(points)))
        for trait in traits([candidate for _, candidate in points]):
            if trait.name in ("micro_batch", "seq_len"):
                continue
            if trait.position is not None and trait.name not in _KNOWN:
                off = _DEGREE_OFF if trait.name in DEGREES else _NUMBER_OFF
                slope = _DEPTH_SLOPE if trait.name == "depth" else 0.0
                mean = mean + slope * self._with_size(trait.position)
                terms.append(Term(off * self._with_size(trait.position)))
                continue
            words = np.array([_WORDS.get((trait.name, value), 0.0) for value in trait.values])
            mean = mean + self._with_size(words - words.mean())
            off = _STAGE_OFF if trait.name == "zero_stage" else _WORDS_OFF
            terms.append(Term(off * ones, group=np.append(trait.codes, 0)))
        builds = np.append(codes([candidate.build for _, candidate in points]), 0)
        each = np.arange(len(points) + 1)
        self._beliefs = Beliefs(mean, [
            *terms, Term(_BUILD_OFF * ones, group=builds), Term(_RUN_OFF * ones, group=each),
        ], [Variant()])  # fmt: skip

    @staticmethod
    def _with_size(of: Array) -> Array:
        """With one more place, for the model's size, which has none of it."""
        return np.append(of, 0)

    def rate(self, place: int, tokens_per_s: float) -> None:
        """Learn from a device's rate how large the model is: it takes 6 FLOPs for each parameter
        and token."""
        log = math.log(_FLOPS_PER_S / (6 * tokens_per_s)) - float(self._sweep.log_time[place])
        self._beliefs.observe(self._size, log, _RATE_OFF**2, Off("rate", _FLOPS_OFF))

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
        return normal_cdf((math.log(limit_bytes) - belief.mean) / off)[: self._size]
