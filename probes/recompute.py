"""Kinds of activation checkpointing: the kept tensors of a block, and their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

_aten = torch.ops.aten
_PRODUCTS = [
    _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]  # fmt: skip
"""Results that selective checkpointing keeps: they are expensive to recompute for their size."""


def arguments(kind: str) -> dict[str, Any]:
    """Arguments of torch's `checkpoint` for `kind`, without the place of kept tensors."""
    if kind == "selective":
        contexts = partial(create_selective_checkpoint_contexts, _PRODUCTS)
        return {"use_reentrant": False, "context_fn": contexts}
    return {"use_reentrant": False}


def every(kind: str) -> int:
    """The number of blocks for each checkpointed one: 2 for "1/2"."""
    return int(kind.partition("/")[2] or 1)


def on_host(kind: str) -> bool:
    """Whether kept tensors go to host memory."""
    return kind == "host" and torch.accelerator.is_available()


def checkpointed(kind: str) -> Callable[..., Any]:
    """torch's `checkpoint` of that `kind`."""
    call: Callable[..., Any] = partial(checkpoint, **arguments(kind))
    if not on_host(kind):
        return call

    def moved(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with save_on_cpu(pin_memory=True):
            return call(function, *args, **named)

    return moved
