"""What is expected of runs that others recorded, by their degrees of parallelism alone.

Nobody tells their model. Yet the order of magnitude of a step's parts is known. It is that of some
billion parameters on GPUs of 5e14 FLOP/s. Links have 250 GB/s in a machine, and 40 GB/s between
machines. Sources as in `space/degrees.py`; ZeRO's traffic is that of
arXiv 1910.02054, section 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.models.checkpointed import recomputed_share
from autotune.space.traits import own_values

_OF_A_NODE = 8
_HALF_RATE_TOKENS = 600.0
"""Tokens of a rank at which half the rate is reached."""
_NEAR_TP, _FAR_TP = 0.05, 0.25
"""Of the work of a micro-step, what tp sends for each further rank, in a machine and beyond."""
_HANDED_ON = 0.02
_REDUCED_TOKENS = 5e3
"""Tokens of a replica's optimizer step that compute as long as gradients take between machines."""
_GATHERED_TOKENS = 2.5e3
"""Tokens of a micro-step, whose work takes as long as it does to gather the weights."""
_NEAR = 1 / 6
"""Of that in one machine."""
_SIZES = (2e-3, 6.0, 40)
"""Parameters for each byte of a device: the least, the most, and how many between."""
_ASPECT, _WEIGHTS_OF_BLOCK, _WORDS = 128, 12, 64_000
"""Width for each block; weights of a block, in squares of the width; the vocabulary."""
_KEPT_BY_BLOCK, _RECOMPUTED = 34, 0.9
"""Bytes of a token and channel; and what of them checkpointing leaves away."""
_CUTS = (24 / 34, 1.0)
"""Of these, that tp cuts, without and with sequence parallelism."""
_BASE = 0.035
"""Of the memory, that no model takes."""
_OVER, _OVER_OFF = 0.35, 0.2
"""Of the runs of a table, that run out of memory."""
_WAYS = 6


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


class Sweep:
    """The runs of one table."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._of = [Split.of(each) for each in points]
        workload = points[0][0]
        told = workload.recipe.get("global_batch")
        # A global batch has whole micro-steps of all runs.
        self._global_batch = told or max(s.micro_batch * s.replicas for s in self._of)
        self._far = workload.world_size > _OF_A_NODE

    def _each(self, name: str) -> Array:
        return np.array([float(getattr(each, name)) for each in self._of])

    @cached_property
    def _accum(self) -> Array:
        """Micro-steps of an optimizer step."""
        samples = self._each("micro_batch") * self._each("replicas")
        return np.maximum(1.0, self._global_batch / samples)

    @cached_property
    def parts(self) -> dict[str, Array]:
        """Of a step, in proportion to the work of its tokens."""
        tp, pp, dp = self._each("tp"), self._each("pp"), self._each("replicas")
        tokens, near = self._each("tokens"), 1.0 if self._far else _NEAR
        micro = {
            "work": 1 + self._each("again") / 3,
            "small": _HALF_RATE_TOKENS * tp * self._each("cp") / tokens,
            "tp_near": np.where(tp <= _OF_A_NODE, _NEAR_TP * (tp - 1), 0.0),
            "tp_far": np.where(tp > _OF_A_NODE, _FAR_TP * (tp - 1), 0.0),
            "handed_on": _HANDED_ON * (pp > 1),
        }
        bubble = (pp - 1) / self._accum
        step_tokens = self._accum * tokens * dp
        return {name: part * (1 + bubble) for name, part in micro.items()} | {
            "bubble": np.sum(list(micro.values()), axis=0) * bubble,
            "reduced": near * _REDUCED_TOKENS * dp / step_tokens * (dp > 1),
            "gathered": near * _GATHERED_TOKENS / tokens * (self._each("stage") == 3) * (dp > 1),
        }

    @cached_property
    def log_time(self) -> Array:
        """The logarithm of their sum, but for the bubble, which is in the others."""
        parts = [part for name, part in self.parts.items() if name != "bubble"]
        return np.asarray(np.log(np.sum(parts, axis=0)))

    def share(self, name: str) -> Array:
        """Of a part in the whole: by so much the logarithm grows with that of the part."""
        return np.asarray(self.parts[name] / np.exp(self.log_time))

    def peaks(self, capacity_bytes: int) -> tuple[Array, list[Array]]:
        """Of the logarithm of each run's peak, and of the parameters as one more: what is
        expected, and in which ways all may be off together, as long as each deviation.

        By models of many sizes, of which those are likelier with which a part of the runs fits.
        """
        tp, pp, dp = self._each("tp"), self._each("pp"), self._each("replicas")
        stage, tokens = self._each("stage"), self._each("tokens") / self._each("cp")
        stages = [stage] if stage.any() else [stage, stage + 1]  # nobody may have told it
        states = [
            np.where(each >= 3, 2 / dp, 2.0)
            + np.where(each >= 2, 4 / dp, 4.0)
            + np.where(each >= 1, 12 / dp, 12.0)
            for each in stages
        ]
        kept = tokens * np.minimum(pp, self._accum) / pp * (1 - _RECOMPUTED * self._each("again"))
        found, weights = [], []
        sizes = capacity_bytes * np.geomspace(*_SIZES)
        for size, held, cut, more in product(sizes, states, _CUTS, np.linspace(-1.0, 1.0, 5)):
            width = (size * _ASPECT / _WEIGHTS_OF_BLOCK) ** (1 / 3)
            table = min(0.5, 2 * _WORDS * width / size)
            state = size * held * ((1 - table) / (tp * pp) + table / tp)
            blocks = _KEPT_BY_BLOCK * width**2 / _ASPECT * math.exp(more)
            activations = kept * blocks * (cut / tp + 1 - cut) + tokens * _WORDS * 6 / tp
            peak = np.log(_BASE * capacity_bytes + state + activations)
            over = float((peak > math.log(capacity_bytes)).mean())
            found.append(np.append(peak, math.log(size)))
            weights.append(math.exp(-(((over - _OVER) / _OVER_OFF) ** 2) / 2 - more**2))
        every, weight = np.array(found), np.array(weights) / sum(weights)
        mean = weight @ every
        off = np.sqrt(weight)[:, None] * (every - mean)
        _, lengths, ways = np.linalg.svd(off, full_matrices=False)
        return mean, [length * way for length, way in zip(lengths[:_WAYS], ways, strict=False)]
