"""Cross-entropy in chunks: all logits never exist at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autotune.wire.recipe import LOSS_CHUNKS

IGNORED = -100
"""A target that does not count, as in torch's cross_entropy."""


def cross_entropy(logits: Callable[[Tensor], Tensor], x_nd: Tensor, targets_n: Tensor) -> Tensor:
    """Mean cross-entropy of `logits` of `x_nd`; N tokens, D channels.

    The backward pass computes each chunk's logits again.
    """

    def summed(x_cd: Tensor, targets_c: Tensor) -> Tensor:
        return F.cross_entropy(logits(x_cd).float(), targets_c, reduction="sum")

    parts = zip(x_nd.chunk(LOSS_CHUNKS), targets_n.chunk(LOSS_CHUNKS), strict=True)
    total = torch.stack([checkpoint(summed, *part, use_reentrant=False) for part in parts]).sum()
    return total / (targets_n != IGNORED).sum()
