"""Modules that a function of the user's makes (autotune/factory.py), one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from autotune.factory import BuildSpec, OwnModel
from autotune.wire.ranks import ModelSpec
from probes.faults import UnsupportedError
from probes.models import Batch, FamilyModels, MakeOptimizer, in_lists
from probes.own import function_of


class FactoryModels(FamilyModels):
    """Models of the user's function."""

    on_meta = False
    _latest: OwnModel

    def make(self, spec: ModelSpec) -> nn.Module:
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
        self._latest = found
        found.module.train()
        return found.module

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        return self._latest.make_batch(micro_batch, seq_len, generator)

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


FAMILY = FactoryModels()
