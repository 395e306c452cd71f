"""Model families that can be probed. One file and one row of `FAMILIES` each.

The rows have the names of those in `autotune.space.models`, which has the arithmetic of each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from autotune.wire.ranks import ModelSpec
from probes.faults import UnsupportedError

FAMILIES = {
    "gpt": "probes.models.gpt",
    "hf": "probes.models.hf",
    "factory": "probes.models.factory",
}
"""Name of a family to the module whose functions are a `FamilyModels`'s."""

Batch = dict[str, Tensor]
"""What one micro-step is fed, by names that the family chooses."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class FamilyModels(Protocol):
    """How the models of one family are made, fed, and taken apart."""

    on_meta: bool
    """Whether what is made on the meta device can be drawn later; else it is made whole."""

    def import_library(self) -> None:
        """What `make` would import. Starts no thread and touches no device."""
        ...

    def make(self, spec: ModelSpec) -> nn.Module:
        """The module that `spec` names, random weights, under the caller's device and dtype."""
        ...

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """`micro_batch` random samples of `seq_len` tokens, on the CPU."""
        ...

    def masked(self, spec: ModelSpec, batch: Batch, lengths: Sequence[int]) -> Batch:
        """`batch` where its samples have these lengths and the rest is padding, as far as the
        family's models are told of that."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss; `model` is the module, or what an engine has wrapped around it."""
        ...

    def flops_per_sample(self, spec: ModelSpec, seq_len: int) -> float | None:
        """Model FLOPs of a sample, where the family knows better than to count them."""
        ...

    def optimizer(self) -> MakeOptimizer | None:
        """What makes the own one of the model that was made last, in the place of AdamW; None
        where it has none."""
        ...

    def sizes(self, spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
        """Channels between its blocks, and entries of its output."""
        ...

    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        """Parts that are sharded on their own, none within another, in the order in which they
        were made. No parameter of them is another part's, too."""
        ...

    def blocks(self, module: nn.Module) -> Iterator[nn.Module]:
        """The layers that are alike, or nearly so: what is compiled."""
        ...

    def draw(self, module: nn.Module, unit: nn.Module, *, within: bool = True) -> None:
        """Draw the weights of `unit`, a part of `module`, as `make` does; of it alone where not
        of what is `within` it, too."""
        ...

    def tie(self, module: nn.Module) -> None:
        """Make one parameter of those that are to be one, after `draw`."""
        ...

    def sharded(self, config: dict[str, Any]) -> AbstractContextManager[Any]:
        """What `make` is called in for DeepSpeed's stage 3 by this `config`."""
        ...

    def is_block_weight(self, name: str) -> bool:
        """Whether the parameter of that name is a block's; embeddings, head and norms are not."""
        ...


def past(lengths: Sequence[int], padded: int) -> Tensor:
    """Whether a position is behind its sample's end; (B, T) for B lengths and T `padded`."""
    return torch.arange(padded) >= torch.tensor(lengths)[:, None]


def in_lists(module: nn.Module) -> Iterator[nn.Module]:
    """Members of its outermost lists: what a model without further word has as blocks."""
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
    found: FamilyModels = importlib.import_module(FAMILIES[name])
    return found
