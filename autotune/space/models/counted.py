"""A model without a closed form: the counts of a helper process (probes/count.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.space.models.family import ModelShape

_STATE_SHARE, _OVER_SHARE = 0.15, 0.25
"""Shares of the capacity that an unknown model is assumed to take: state, and a middling batch."""
_STATE_BYTES = 16
"""Bytes of a parameter: weights, gradients and Adam's state in fp32."""
_BLOCK_FLOATS = 34


@dataclass(frozen=True, kw_only=True)
class CountedShape(ModelShape):
    seq_lens: list[int]
    flops: list[float]
    """Model FLOPs per token, forward and backward, by seq_len."""

    def flops_per_token(self, seq_len: int) -> float:
        return self.flops[self.seq_lens.index(seq_len)]


def guessed(depth: int, seq_lens: Sequence[int], tokens: int, capacity_bytes: int) -> CountedShape:
    """A shape by order of magnitude, until a measurement. A middling batch has `tokens`."""
    parameters = max(1, int(capacity_bytes * _STATE_SHARE / _STATE_BYTES))
    width = max(1, int(capacity_bytes * _OVER_SHARE / tokens / (_BLOCK_FLOATS * 4)))
    return CountedShape(
        depth=depth,
        width=width,
        vocab_size=1,
        parameters=parameters,
        trainable=parameters,
        block_matrices=parameters,
        largest_block=parameters,
        seq_lens=list(seq_lens),
        flops=[6.0 * parameters for _ in seq_lens],
    )
