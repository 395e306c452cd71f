"""A model that has no closed form: what a helper process counted of it (probes/count.py)."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.models.family import ModelShape


@dataclass(frozen=True, kw_only=True)
class CountedShape(ModelShape):
    """One depth of it."""

    seq_lens: list[int]
    flops: list[float]
    """Model FLOPs per token, forward and backward, by seq_len."""

    def flops_per_token(self, seq_len: int) -> float:
        return self.flops[self.seq_lens.index(seq_len)]
