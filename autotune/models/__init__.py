"""What the study knows of each model family: dimensions, parameters, FLOPs, what a step keeps.

One file and one row of `FAMILIES` each. The rows have the names of those in `probes.models`, which
builds the modules and makes their batches. Nothing here builds anything.
"""

from __future__ import annotations

from typing import Protocol

from autotune.models import gpt
from autotune.models.defaults import Defaults


class Shape(Protocol):
    """A model's dimensions, and the counts that follow from them."""

    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int:
        """Channels between the blocks."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def parameters(self) -> int:
        """All of them."""
        ...

    @property
    def block_matrices(self) -> int:
        """Parameters of all blocks' matrices: what Muon is for."""
        ...

    @property
    def largest_block(self) -> int:
        """Parameters of the matrices of the largest block."""
        ...

    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of forward and backward per token, recomputation not counted."""
        ...

    def block_bytes(self, checkpointing: str, dtype: str) -> float:
        """What all blocks keep of a token for the backward pass, roughly."""
        ...

    @property
    def head_bytes(self) -> float:
        """What head and loss keep of a token, roughly."""
        ...


class Family(Protocol):
    """One model family."""

    @property
    def width_rule(self) -> str:
        """What the width is where none is given, in words."""
        ...

    def shape(self, depth: int, width: int | None, vocab_size: int) -> Shape:
        """The model of `depth` blocks; `width` None stands for `width_rule`."""
        ...

    def check_width(self, width: int) -> None:
        """Raises `UsageError` where no model of the family is that wide."""
        ...

    def defaults(self, device_kind: str) -> Defaults:
        """What is searched where nothing else is asked for."""
        ...


FAMILIES: dict[str, Family] = {"gpt": gpt.Gpt()}


def family(name: str) -> Family:
    """The family of that name, which is one of `FAMILIES`."""
    return FAMILIES[name]
