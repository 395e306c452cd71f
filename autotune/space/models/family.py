"""The interface of model families for the study: names, dimensions, activations of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.space.models.checkpointed import kept_blocks
from autotune.space.models.defaults import BLOCK_FLOATS, Defaults, ModelRequest
from autotune.wire.helpers import Parameters

LOGIT_BYTES = 12
"""Bytes of a token and vocabulary entry: logits, their log-softmax and its gradient, in fp32."""


@dataclass(frozen=True, kw_only=True)
class ModelShape(Parameters, ABC):
    """A model's dimensions, and the counts that follow from them."""

    depth: int
    block_floats: float = BLOCK_FLOATS

    @abstractmethod
    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of forward and backward per token, without recomputation."""

    def block_bytes(self, checkpointing: str, dtype: str) -> float:
        """Bytes a token that all blocks keep for the backward pass, roughly."""
        one = float(self.block_floats * self.width * (4 if dtype == "fp32" else 2))
        return one * kept_blocks(checkpointing, self.depth, self.block_floats)

    @property
    def head_bytes(self) -> float:
        """Bytes a token that head and loss keep, roughly."""
        return float(LOGIT_BYTES * self.vocab_size)


class Family(ABC):
    """One model family. The methods here are for models of any depth and length, of equal blocks.

    A recipe is all that `probes.models` builds a model from, beside its depth: JSON types.
    """

    counted: bool
    """Whether a helper process counts its models, since there is no closed form."""
    is_code = False
    """Whether a model is the user's code, which may have changed when a study is resumed."""

    @abstractmethod
    def recipe(self, asked: ModelRequest) -> dict[str, Any]:
        """The recipe of a model. Raises `UsageError` if there is no such model."""

    @abstractmethod
    def defaults(self, recipe: Mapping[str, Any], device_kind: str) -> Defaults:
        """The values that are searched if the user names none."""

    @abstractmethod
    def lacks(self, recipe: Mapping[str, Any], axis: str, value: str) -> str:
        """Why its models cannot have that value on an axis; empty if they may."""

    def most_seq_len(self, recipe: Mapping[str, Any]) -> int | None:
        """The longest sample that a model takes; None if there is no limit."""
        return None

    def wrong_length(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        """Why no sample has that length, and what would be right; empty if some have."""
        return ""

    def mixed(self, recipe: Mapping[str, Any], seq_len: int) -> dict[int, int]:
        """Samples by length, where the model's differ and `seq_len` is the longest; else empty."""
        return {}

    def one_length(self, recipe: Mapping[str, Any]) -> str:
        """Why its samples have no lengths of the user's; empty if they may."""
        return ""

    def check_depth(self, recipe: Mapping[str, Any], depth: int) -> None:
        """Raises `UsageError` if no model of that `recipe` has so many blocks."""
        return

    def at_depth(self, recipe: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return self.of_blocks(recipe, range(depth))

    def of_blocks(self, recipe: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
        """The recipe with copies of its blocks at these places, in this order."""
        return dict(recipe)

    def kinds(self, recipe: Mapping[str, Any], depth: int) -> list[int]:
        """For each of so many blocks the place of the first equal one."""
        return [0] * depth

    def parts(self, recipe: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Places of blocks that repeat together. Each part holds one sequence that repeats."""
        return [(0,)]

    def looked_at(self, recipe: Mapping[str, Any], seq_lens: Sequence[int]) -> tuple[int, ...]:
        """The lengths to count for `seq_lens`; a short one if FLOPs and memory are linear."""
        return tuple(seq_lens)

    def untraced(self, recipe: Mapping[str, Any], device_kind: str) -> str:
        """Why a trace cannot show the memory of its models on such a device; empty if it can."""
        return ""

    def block_floats(self, recipe: Mapping[str, Any], device_kind: str) -> float:
        """2-byte floats a token and channel that a block keeps for its backward pass, roughly."""
        return BLOCK_FLOATS
