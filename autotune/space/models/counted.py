"""A model that has no closed form: what a helper process counted of it (probes/count.py)."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.models.checkpointed import kept_blocks
from autotune.space.models.defaults import BLOCK_FLOATS

_LOGIT_BYTES = 12
"""A token and vocabulary entry: logits, their log-softmax and its gradient, in fp32."""


@dataclass(frozen=True, kw_only=True)
class CountedShape:
    """One depth of it."""

    depth: int
    width: int
    vocab_size: int
    parameters: int
    trainable: int
    block_matrices: int
    largest_block: int
    seq_lens: list[int]
    flops: list[float]
    """Model FLOPs per token, forward and backward, by seq_len."""
    own_optimizer: bool = False
    block_floats: float = BLOCK_FLOATS

    def flops_per_token(self, seq_len: int) -> float:
        return self.flops[self.seq_lens.index(seq_len)]

    def block_bytes(self, checkpointing: str, dtype: str) -> float:
        one = float(self.block_floats * self.width * (4 if dtype == "fp32" else 2))
        return one * kept_blocks(checkpointing, self.depth, self.block_floats)

    @property
    def head_bytes(self) -> float:
        return float(_LOGIT_BYTES * self.vocab_size)
