"""Modules from a user's function (autotune/factory.py), one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import partial
from inspect import signature
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from autotune.factory import EXAMPLE, BuildSpec, OwnModel
from autotune.wire.ranks import ModelSpec
from probes.faults import UnsupportedError
from probes.models import Batch, FamilyModels, MakeOptimizer, in_lists
from probes.own import function_of
from probes.recompute import checkpointed, every


class FactoryModels(FamilyModels):
    """Models of the user's function."""

    on_meta = False
    _latest: OwnModel

    def make(self, spec: ModelSpec) -> nn.Module:
        """Raises `UnsupportedError` without such a function, or if it returns something else; and
        the errors of the function."""
        recipe = spec.recipe
        name = f"{recipe['module']}:{recipe['function']}"
        function = function_of(recipe["folder"], recipe["module"], recipe["function"])
        _check_takes_one(function, name)
        try:
            found, self.unread = _called(function, BuildSpec(
                depth=spec.depth, seq_len=recipe["seq_len"], dtype=recipe["dtype"],
                checkpointing=spec.checkpointing, device=recipe["device"],
                attention=spec.attention,
            ))  # fmt: skip
        except TypeError as error:
            if not str(error).startswith("OwnModel."):
                raise
            raise UnsupportedError(f"{name}: {error}; write {EXAMPLE}") from error
        if not isinstance(found, OwnModel):
            what = type(found).__name__
            raise UnsupportedError(
                f"{name} returned {what}, and not an autotune.factory.OwnModel; write {EXAMPLE}"
            )
        self._latest = found
        if "checkpointing" in self.unread and spec.checkpointing != "none":
            for block in list(self.units(found.module))[:: every(spec.checkpointing)]:
                block.forward = partial(checkpointed(spec.checkpointing), block.forward)
        found.module.train()
        return found.module

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """Raises `UnsupportedError` if the user's function makes something else."""
        found: Any = self._latest.make_batch(micro_batch, seq_len, generator)
        if not isinstance(found, Mapping) or not found:
            what = type(found).__name__ if found else f"an empty {type(found).__name__}"
            raise UnsupportedError(f"make_batch returned {what}; return a dict of tensors")
        for key, value in found.items():
            if not isinstance(value, Tensor):
                what = f"{type(value).__name__} as {key!r}"
                raise UnsupportedError(f"make_batch returned {what}; return a dict of tensors")
        sizes = {key: value.shape[0] for key, value in found.items() if value.ndim}
        if micro_batch not in sizes.values():
            raise UnsupportedError(
                f"make_batch({micro_batch}, {seq_len}, generator) returned tensors whose first"
                f" axes are {sizes}; make them micro_batch, here {micro_batch}"
            )
        return cast("Batch", found)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._latest.loss(model, batch)

    def flops_per_sample(self, spec: ModelSpec, seq_len: int) -> float | None:
        counted = self._latest.flops_per_token
        return None if counted is None else counted(seq_len) * seq_len

    def optimizer(self) -> MakeOptimizer | None:
        return self._latest.optimizer

    def sizes(self, spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
        """Channels of its largest matrix; no vocabulary."""
        widths = [max(p.shape[-2:]) for p in module.parameters() if p.dim() >= 2]
        return max(widths, default=1), 1

    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        yield from in_lists(module) if self._latest.blocks is None else self._latest.blocks

    def is_block_weight(self, name: str) -> bool:
        return any(part.isdigit() for part in name.split("."))


def _check_takes_one(function: Callable[..., Any], name: str) -> None:
    """Raises `UnsupportedError` if `function` cannot be called with only a spec."""
    try:
        signature(function).bind("spec")
    except TypeError as error:
        reason = f"{name} is called with one argument, a BuildSpec: {error}; write {EXAMPLE}"
        raise UnsupportedError(reason) from error
    except ValueError:
        return  # C code may have no signature


def _called(function: Callable[[BuildSpec], Any], spec: BuildSpec) -> tuple[Any, frozenset[str]]:
    """The result of `function` for `spec`, and the fields that it did not read. If something kept
    the spec, it may read them later, so none count as unread."""
    read = set[str]()

    class Watched(BuildSpec):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def __repr__(self) -> str:
            return repr(spec)  # printing does not count as reading

    watched = Watched(**asdict(spec))
    read.clear()
    found, kept = function(watched), ref(watched)
    del watched
    if kept() is not None or "__dict__" in read:
        return found, frozenset()
    return found, frozenset(each.name for each in fields(BuildSpec)) - read


FAMILY = FactoryModels()
