"""Modules that a function of the user's makes (autotune/factory.py), one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from autotune.factory import BuildSpec, OwnModel
from autotune.wire.ranks import ModelSpec
from probes.faults import UnsupportedError
from probes.models import Batch, MakeOptimizer, in_lists
from probes.own import function_of

on_meta = False
_latest: list[OwnModel] = []


def import_library() -> None:
    """The user's module may do anything as it is imported: that is for ranks alone."""


def make(spec: ModelSpec) -> nn.Module:
    """Raises `UnsupportedError` where there is no such function, or it returns something else;
    and whatever the function raises."""
    recipe = spec.recipe
    name = f"{recipe['module']}:{recipe['function']}"
    function = function_of(recipe["folder"], recipe["module"], recipe["function"])
    found = function(BuildSpec(
        depth=spec.depth, seq_len=recipe["seq_len"], dtype=recipe["dtype"],
        checkpointing=spec.checkpointing, device=recipe["device"], attention=spec.attention,
    ))  # fmt: skip
    if not isinstance(found, OwnModel):
        what = type(found).__name__
        raise UnsupportedError(f"{name} returned {what}, and not an autotune.factory.OwnModel")
    if found.blocks is not None:
        found = replace(found, blocks=list(found.blocks))  # to be gone through more than once
    _latest[:] = [found]
    found.module.train()
    return found.module


def batch(
    spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
) -> Batch:
    return _latest[0].make_batch(micro_batch, seq_len, generator)


def masked(spec: ModelSpec, batch: Batch, lengths: Sequence[int]) -> Batch:
    """As it is: what a batch is made of only the user knows, and its shape is padded already."""
    return batch


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return _latest[0].loss(model, batch)


def flops_per_sample(spec: ModelSpec, seq_len: int) -> float | None:
    counted = _latest[0].flops_per_token
    return None if counted is None else counted(seq_len) * seq_len


def optimizer() -> MakeOptimizer | None:
    return _latest[0].optimizer


def sizes(spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
    """Channels of its largest matrix; no vocabulary."""
    widths = [max(p.shape[-2:]) for p in module.parameters() if p.dim() >= 2]
    return max(widths, default=1), 1


def units(module: nn.Module) -> Iterator[nn.Module]:
    yield from in_lists(module) if _latest[0].blocks is None else _latest[0].blocks


blocks = units


def draw(module: nn.Module, unit: nn.Module, *, within: bool = True) -> None:
    """They were drawn as the module was made."""


def tie(module: nn.Module) -> None:
    """Nothing was taken apart."""


def sharded(config: dict[str, Any]) -> AbstractContextManager[Any]:
    """DeepSpeed shards what was made whole: inside `deepspeed.zero.Init` a module's own
    initialization would see shards."""
    return nullcontext()


def is_block_weight(name: str) -> bool:
    return any(part.isdigit() for part in name.split("."))
