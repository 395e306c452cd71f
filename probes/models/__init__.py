"""Model families that can be probed. One file and one row of `FAMILIES` each.

The rows have the names of those in `autotune.models`, which has the arithmetic of each family.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from autotune.wire.messages import ModelSpec
from probes.faults import UnsupportedError

FAMILIES = {"gpt": "probes.models.gpt"}
"""Name of a family to the module whose functions are a `Family`'s."""

Batch = dict[str, Tensor]
"""What one micro-step is fed, by names that the family chooses."""


class Family(Protocol):
    """How the models of one family are made, fed, and taken apart."""

    def make(self, spec: ModelSpec) -> nn.Module:
        """The module that `spec` names, random weights, under the caller's device and dtype."""
        ...

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """`micro_batch` random samples of `seq_len` tokens, on the CPU."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss; `model` is the module, or what an engine has wrapped around it."""
        ...

    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        """Its parts, none within another, in the order in which they were made."""
        ...

    def is_block_weight(self, name: str) -> bool:
        """Whether the parameter of that name is a block's; embeddings, head and norms are not."""
        ...


def family(name: str) -> Family:
    """The family `name`.

    Raises:
        UnsupportedError: this version knows no such family.
    """
    if name not in FAMILIES:
        raise UnsupportedError(f"model {name} is not known to this version of the probes")
    found: Family = importlib.import_module(FAMILIES[name])
    return found
