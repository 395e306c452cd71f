"""What is expected of runs that others recorded, by their degrees of parallelism alone.

Nobody tells their model. Yet the order of magnitude of a step's parts is known, and how far it may
be off. Those of speed are from fits to runs of results/public/ultrascale.csv: of its models of
1.34 and 8.86 billion parameters. Sources of the form are as in `space/degrees.py`. ZeRO's traffic
is that of arXiv 1910.02054, section 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.models.checkpointed import recomputed_share
from autotune.space.traits import own_values

_OF_A_NODE = 8
_NEAR = 1 / 6
"""Of what links between machines take, in one machine."""
_SIZES = (2e-3, 6.0)
"""Parameters for each byte of a device: the least and the most."""
_ASPECT, _WEIGHTS_OF_BLOCK, _WORDS = 128, 12, 64_000
"""Width for each block; weights of a block, in squares of the width; the vocabulary."""
_DEPTH_OFF = 0.3
"""Deviation of the logarithm of the blocks that a model of some width has."""
_KEPT_BY_BLOCK, _RECOMPUTED = 34, 0.9
"""Bytes of a token and channel; and what of them checkpointing leaves away."""
_CUTS = (24 / 34, 1.0)
"""Of these, that tp cuts, without and with sequence parallelism."""
_LENGTH, _LENGTH_OFF = 4096, 0.7
"""Tokens of a sample in a table that does not tell them; and the deviation of the logarithm."""
_BASE = 0.035
"""Of the memory, that no model takes."""
_OVER, _OVER_OFF = 0.35, 0.2
"""Of the runs of a table, that run out of memory."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How the ranks of one run share the model, and its batch."""

    tp: int
    pp: int
    cp: int
    replicas: int
    micro_batch: int
    tokens: int
    """Of a micro-step."""
    stage: int
    again: float
    """Of a forward pass, that is computed again."""

    @classmethod
    def of(cls, point: Point) -> Split:
        workload, c = point
        told = {name: int(value) for name, value in own_values(c) if value.isdigit()}
        tp, pp, cp = (max(1, told.get(name, 1)) for name in ("tp", "pp", "cp"))
        return cls(
            tp=tp, pp=pp, cp=cp, replicas=max(1, workload.world_size // (tp * pp * cp)),
            micro_batch=c.micro_batch, tokens=c.tokens, stage=c.zero_stage,
            again=recomputed_share(c.checkpointing, c.depth),
        )  # fmt: skip


class _Drawn:
    """Draws of parameters, by [draw][1]."""

    def __init__(self, count: int, *, seed: int) -> None:
        self._rng, self._shape = np.random.default_rng(seed), (count, 1)

    def around(self, median: float, off: float) -> Array:
        """`off` is the deviation of the logarithm."""
        return np.asarray(median * np.exp(off * self._rng.standard_normal(self._shape)))

    def between(self, least: float, most: float) -> Array:
        return self._rng.uniform(least, most, self._shape)


class Sweep:
    """The runs of one table."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._of = [Split.of(each) for each in points]
        workload = points[0][0]
        told = workload.recipe.get("global_batch")
        # A global batch has whole micro-steps of all runs.
        self._global_batch = told or max(s.micro_batch * s.replicas for s in self._of)
        self._far = workload.world_size > _OF_A_NODE
        self._has_lengths = any(c.seq_len > 1 for _, c in points)
        self._by_samples = bool(workload.recipe.get("by_samples"))

    def _lengths(self, count: int) -> Array:
        """Tokens of what the table takes for one, by [draw][1]: of a sample, without lengths."""
        if self._has_lengths:
            return np.ones((count, 1))
        return _Drawn(count, seed=2).around(_LENGTH, _LENGTH_OFF)

    def _each(self, name: str) -> Array:
        return np.array([float(getattr(each, name)) for each in self._of])

    @cached_property
    def _accum(self) -> Array:
        """Micro-steps of an optimizer step."""
        samples = self._each("micro_batch") * self._each("replicas")
        return np.maximum(1.0, self._global_batch / samples)

    def log_times(self, count: int) -> Array:
        """The logarithm of the time of a token, in its work on one device, by [draw][run]; that of
        a sample where the rates are of samples, whose lengths nobody tells."""
        drawn = _Drawn(count, seed=0)
        tp, pp, cp, dp = (self._each(name) for name in ("tp", "pp", "cp", "replicas"))
        stage, accum, length = self._each("stage"), self._accum, self._lengths(count)
        tokens = self._each("tokens") * length
        links, beyond = 1.0 if self._far else _NEAR, (tp > _OF_A_NODE) * tp / _OF_A_NODE
        # All in tokens: the work of so many on one device takes as long. First a micro-step.
        sent = drawn.around(0.06, 0.6) * (tp - 1) + drawn.around(0.3, 0.8) * beyond
        work = tokens / (tp * cp) * (1 + self._each("again") / 3) * (1 + sent)
        # A rank with little work waits for its launches, and for the others of its tp.
        waits = drawn.around(0.3, 0.7) * (tp > 1) + drawn.around(0.75, 0.6) * beyond
        waits = waits + drawn.around(0.3, 1.5) * (tp - 1) * (pp > 1)
        launches = drawn.around(1200, 0.8) * (1 + waits)
        sharp = 1 + drawn.around(3.0, 0.6)  # how far one hides the other
        micro = (work**sharp + launches**sharp) ** (1 / sharp) / pp
        handed_on = drawn.around(100, 1.5) + drawn.around(0.02, 1.0) * micro
        sharing = links * (dp > 1) / (tp * pp)
        gathered = drawn.around(2500, 1.0) * sharing * (stage == 3)
        micro = micro + handed_on * (pp > 1) + gathered
        reduced = drawn.around(4500, 0.8) * sharing
        # Some programs reduce after each micro-step of a pipeline, too.
        often = drawn.around(0.1, 2.0).clip(0.0, 10.0) * ((stage == 0) & (pp > 1)) + (stage >= 2)
        step = micro * (accum + pp - 1) + reduced * (1 + often * (accum - 1))
        step = step + drawn.around(300, 1.0)
        told = length if self._by_samples else 1.0
        return np.asarray(np.log(step / (accum * tokens * dp) * told))

    def peaks(self, capacity_bytes: int, count: int) -> tuple[Array, Array]:
        """The log of each run's peak, then of the parameters, by [draw][run]; and their weights.

        By models of many sizes, of which those are likelier with which a part of the runs fits. A
        pipeline of more stages than the model has blocks breaks: it counts as out of memory.
        """
        drawn = _Drawn(count, seed=1)
        tp, pp, dp = (self._each(name) for name in ("tp", "pp", "replicas"))
        tokens = self._each("tokens") * self._lengths(count) / self._each("cp")
        stage = self._each("stage")
        if not stage.any():  # nobody may have told it
            stage = stage + drawn.between(0, 2).astype(int)
        size = capacity_bytes * np.exp(drawn.between(*np.log(_SIZES)))
        held = (
            np.where(stage >= 3, 2 / dp, 2.0)
            + np.where(stage >= 2, 4 / dp, 4.0)
            + np.where(stage >= 1, 12 / dp, 12.0)
        ) * drawn.around(1.0, 0.15)
        width = (size * _ASPECT / _WEIGHTS_OF_BLOCK) ** (1 / 3) * drawn.around(1.0, 0.15)
        words = drawn.around(_WORDS, 0.5)
        table = np.minimum(0.5, 2 * words * width / size)
        state = size * held * ((1 - table) / (tp * pp) + table / tp)
        blocks = _KEPT_BY_BLOCK * width**2 / _ASPECT * drawn.around(1.0, 0.6)
        cut = drawn.between(*_CUTS)
        kept = tokens * np.minimum(pp, self._accum) / pp * (1 - _RECOMPUTED * self._each("again"))
        logits = tokens * words * drawn.around(6, 0.4) / tp
        activations = kept * blocks * (cut / tp + 1 - cut) + logits
        peak = np.log(capacity_bytes * drawn.around(_BASE, 0.7) + state + activations)
        over = (peak > math.log(capacity_bytes)).mean(axis=1)
        depth = width / _ASPECT * drawn.around(1.0, _DEPTH_OFF)
        too_large = math.log(capacity_bytes) + 1
        peak = np.where(pp > depth, np.maximum(peak, too_large), peak)
        weights = np.exp(-(((over - _OVER) / _OVER_OFF) ** 2) / 2)
        return np.append(peak, np.log(size), axis=1), weights / weights.sum()
