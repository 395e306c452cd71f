"""Traces of models that weigh and keep what a formula says."""

from __future__ import annotations

from autotune.space.models.checkpointed import checkpointed_every
from autotune.space.trace import Trace
from autotune.wire.helpers import Describe, Described, Traced
from autotune.wire.ranks import ModelSpec


def weight(model: ModelSpec) -> int:
    """Bytes held by a made-up model."""
    return 1000 * model.width + 500 * model.width * model.depth


def made_up(asked: Describe, *, update: int = 0, hinge: int = 0) -> Trace:
    """A trace of made-up models. On top of their weights, the peak has 7 bytes a token and layer,
    2 if checkpointed; at least `hinge` a layer. An update takes `update` a layer."""

    def peak(model: ModelSpec, seq_len: int, size: int) -> int:
        every = checkpointed_every(model.checkpointing)
        kept = [
            7 if model.checkpointing == "none" or layer % every else 2
            for layer in range(model.depth)
        ]
        return weight(model) + sum(max(rate * seq_len * size, hinge) for rate in kept)

    def traced(model: ModelSpec) -> Traced:
        peaks = [[peak(model, t, b) for b in asked.micro_batches] for t in asked.seq_lens]
        return Traced(
            parameters=model.width, held_bytes=weight(model),
            update_bytes=weight(model) + model.depth * update,
            early_bytes=peaks, late_bytes=peaks,
        )  # fmt: skip

    return Trace(asked, Described(base_bytes=10**8, models=[*map(traced, asked.models)]))
