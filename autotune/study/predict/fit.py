"""Predicted peaks of runs of an unknown model, on any axes, in the logarithm.

They are learned from recorded peaks, or only from whether memory ran out, which bounds a peak on
one side. What is expected comes from `sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.axes import DEGREES
from autotune.space.traits import traits
from autotune.study.predict.belief import Term, codes
from autotune.study.predict.memory import OutOf, Prediction, Within
from autotune.study.predict.mixture import Mixture
from autotune.study.predict.sweep import Sweep

_DRAWS = 4000
_MOST = 4_000_000
"""Values of all draws: fewer draws for many points."""
_WORDS = {
    ("offload", "optimizer"): -0.3,
    ("offload", "all"): -0.5,
}
_DEPTH_SLOPE = 0.7
_TRAIT_OFF, _TOKENS_OFF, _BUILD_OFF, _RUN_OFF = 0.15, 0.1, 0.06, 0.1
"""How far the logarithm of a peak may be off: by a word or along a number, along the tokens of a
micro-step, of a build, and of a run. These were chosen on sweeps of results/sweeps.md."""
_EDGE = 0.04
"""Closer than this share to the capacity, chance decides whether memory runs out."""
_WRONG = 0.03
"""Chance of a run to be told as out of memory that broke for another reason."""
_NOISE = 0.012
_MOST_OFF = 4.0
"""A size by speed that is off by more deviations says nothing."""
_FLOPS_PER_S, _FLOPS_OFF = 4e14, 0.4
"""Of a GPU without anything that a step waits for, by order of magnitude; and its deviation."""


def draws_of(count: int) -> int:
    """How many draws so many points have."""
    return min(_DRAWS, _MOST // count)


_EXPECTED = ("micro_batch", "seq_len", "zero_stage", "checkpointing", *DEGREES)
"""Axes whose effect `sweep` expects."""


class FitModel:
    """Peak bytes of all points, from nothing but their axes."""

    def __init__(self, points: Sequence[Point], capacity_bytes: int) -> None:
        self._size = len(points)
        candidates = [candidate for _, candidate in points]
        draws, weights = Sweep(points).peaks(capacity_bytes, draws_of(len(points)))
        rng = np.random.default_rng(2)
        for trait in traits(candidates):
            if trait.name in _EXPECTED:
                continue
            if trait.position is not None:
                slope = _DEPTH_SLOPE if trait.name == "depth" else 0.0
                slopes = slope + _TRAIT_OFF * rng.standard_normal((len(draws), 1))
                draws[:, :-1] += slopes * trait.position
            else:
                effects = _TRAIT_OFF * rng.standard_normal((len(draws), max(trait.codes) + 1))
                words = [_WORDS.get((trait.name, value), 0.0) for value in trait.values]
                draws[:, :-1] += np.array(words) + effects[:, trait.codes]
        tokens = np.log([candidate.tokens for candidate in candidates])
        ones = self._with_size(np.ones(len(points)))
        builds = np.append(codes([candidate.build for candidate in candidates]), 0)
        self._beliefs = Mixture(draws, [
            Term(_TOKENS_OFF * self._with_size(tokens - tokens.mean())),
            Term(_BUILD_OFF * ones, group=builds),
        ], np.maximum(_RUN_OFF * ones, 1e-6), weights)  # fmt: skip

    @staticmethod
    def _with_size(of: Array) -> Array:
        """With one more place, for the model's size, which has none of it."""
        return np.append(of, 0)

    def work(self, log_s: float, deviation: float) -> None:
        """Learn the model's size from the log of a device's seconds a token, at 6 FLOPs each."""
        log = math.log(_FLOPS_PER_S / 6) + log_s
        self._beliefs.forget(self._size)
        known = self._beliefs.belief()
        off = abs(log - known.mean[self._size]) / known.deviation[self._size]
        if off < _MOST_OFF:  # else it is no such device, or a rate in another unit
            self._beliefs.observe(self._size, log, _FLOPS_OFF**2 + deviation**2)

    def trace(self, over: Array, more_base: float) -> None:
        """Nothing to do: recorded runs are not traced."""

    def observe(self, place: int, peak: float | OutOf | Within, *, weighed: bool = False) -> None:
        """Learn the peak of the point in that `place`: bytes, or its side of the capacity."""
        if not isinstance(peak, OutOf | Within):
            self._beliefs.observe(place, math.log(peak), _NOISE**2)
            return
        limit, above = math.log(peak.capacity_bytes), isinstance(peak, OutOf)
        self._beliefs.bound(place, limit, above=above, edge=_EDGE, wrong=_WRONG)

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
        return self._beliefs.below(math.log(limit_bytes), _EDGE)[: self._size]
