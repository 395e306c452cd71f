"""Model families that can be probed. One file and one row of `FAMILIES` each.

The rows have the names of those in `autotune.space.models`, which has the arithmetic of each.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from autotune.wire.ranks import ModelSpec, Rows
from probes.faults import UnsupportedError

FAMILIES = {
    "gpt": "probes.models.gpt",
    "hf": "probes.models.hf",
    "factory": "probes.models.factory",
}
"""Name of a family to its module, whose `FAMILY` is a `FamilyModels`."""

Batch = dict[str, Tensor]
"""The input of one micro-step, by names that the family chooses."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class FamilyModels(ABC):
    """Makes the models of one family, their batches, losses and parts."""

    on_meta = True
    """Whether weights of a model on the meta device can be drawn later; else it is made whole."""
    unread: frozenset[str] = frozenset()
    """Settings that the user's function did not read for the latest model."""

    def import_library(self) -> None:
        """Import the library for `make`. Start no thread and touch no device."""
        return

    @abstractmethod
    def make(self, spec: ModelSpec) -> nn.Module:
        """The module of `spec`, with random weights, under the caller's device and dtype."""

    @abstractmethod
    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """`micro_batch` random samples of `seq_len` tokens, on the CPU."""

    def masked(self, spec: ModelSpec, batch: Batch, lengths: Sequence[int]) -> Batch:
        """`batch` with samples of these lengths and padding after them. By default it stays: its
        shape is padded already."""
        return batch

    def packed(self, spec: ModelSpec, batch: Batch, rows: Rows) -> Batch:
        """`batch` with rows of samples of these lengths, which do not see each other.

        Raises:
            UnsupportedError: the model cannot keep them apart.
        """
        raise UnsupportedError(f"{spec.name} models take no packed samples", "pack")

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss; `model` is the module, or an engine's wrapper of it."""

    def flops_per_sample(self, spec: ModelSpec, seq_len: int) -> float | None:
        """Model FLOPs of a sample; None if they have to be counted."""
        return None

    def optimizer(self) -> MakeOptimizer | None:
        """Makes the latest model's own optimizer; None for AdamW."""
        return None

    @abstractmethod
    def sizes(self, spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
        """Channels between its blocks, and entries of its output."""

    @abstractmethod
    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        """Parts that are sharded on their own, in the order of their making. No part is within
        another, and no two share a parameter."""

    def blocks(self, module: nn.Module) -> Iterator[nn.Module]:
        """The layers that are alike, or nearly so; these are compiled. By default the units."""
        return self.units(module)

    def draw(self, module: nn.Module, unit: nn.Module, *, within: bool = True) -> None:
        """Draw the weights of `unit`, a part of `module`, as `make` does; `within` also those of
        its parts."""
        return

    def tie(self, module: nn.Module) -> None:
        """After `draw`, share the parameters that belong to several parts."""
        return

    def sharded(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        """The context of `make` for DeepSpeed's stage 3 with this `config`. By default the model
        is made whole, since its initialization would see shards inside `deepspeed.zero.Init`."""
        return nullcontext()

    @abstractmethod
    def is_block_weight(self, name: str) -> bool:
        """Whether the parameter of that name belongs to a block, unlike embeddings, head and
        norms."""


def past(lengths: Sequence[int], padded: int) -> Tensor:
    """Whether a position is past its sample's end; (B, T) for B lengths and T `padded`."""
    return torch.arange(padded) >= torch.tensor(lengths)[:, None]


def within(rows: Rows, padded: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each position of rows with samples of these lengths, then padding; (B, T) each: number
    of its sample, place in the sample, and whether it is the last or padding."""
    numbers, places, last = [], [], []
    for row in rows:
        lengths = [*row, padded - sum(row)] if sum(row) < padded else row
        numbers.append([number for number, length in enumerate(lengths) for _ in range(length)])
        places.append([place for length in lengths for place in range(length)])
        ends = {*accumulate(row)}
        last.append([place + 1 in ends or place >= sum(row) for place in range(padded)])
    return torch.tensor(numbers), torch.tensor(places), torch.tensor(last)


def in_lists(module: nn.Module) -> Iterator[nn.Module]:
    """Members of its outermost lists: by default, a model's blocks."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from in_lists(child)


def family(name: str) -> FamilyModels:
    """The family `name`.

    Raises:
        UnsupportedError: this version knows no such family.
    """
    if name not in FAMILIES:
        raise UnsupportedError(f"model {name} is not known to this version of the probes")
    found: FamilyModels = importlib.import_module(FAMILIES[name]).FAMILY
    return found
