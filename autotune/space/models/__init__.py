"""What the study knows of each model family: what a name means, dimensions, what a step keeps.

One file and one row of `FAMILIES` each. The rows have the names of those in `probes.models`, which
builds the modules and makes their batches. Nothing here builds anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from autotune.errors import UsageError
from autotune.space.models import factory, gpt, hf
from autotune.space.models.defaults import Defaults, ModelRequest


class ModelShape(Protocol):
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
    def trainable(self) -> int:
        """Those that the optimizer steps."""
        ...

    @property
    def block_matrices(self) -> int:
        """Parameters of all blocks' matrices: what Muon is for."""
        ...

    @property
    def largest_block(self) -> int:
        """Parameters of the matrices of the largest block."""
        ...

    @property
    def own_optimizer(self) -> bool:
        """Whether it brings one, in the place of AdamW."""
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

    counted: bool
    """Whether a helper process has to count its models, since there is no closed form."""

    is_code: bool
    """Whether a model is the user's code, which may be another when a study is resumed."""

    def recipe(self, asked: ModelRequest) -> dict[str, Any]:
        """What else its models are built from: JSON types, for `probes.models`.

        Raises:
            UsageError: there is no such model.
        """
        ...

    def defaults(self, recipe: Mapping[str, Any], device_kind: str) -> Defaults:
        """What is searched where nothing else is asked for."""
        ...

    def most_seq_len(self, recipe: Mapping[str, Any]) -> int | None:
        """The longest sample that it takes; None where there is no limit."""
        ...

    def lacks(self, recipe: Mapping[str, Any], axis: str, value: str) -> str:
        """Why none of its models has that value on an axis of the space; empty where one may."""
        ...

    def check_depth(self, recipe: Mapping[str, Any], depth: int) -> None:
        """Raises `UsageError` where no model of that `recipe` has so many blocks."""
        ...

    def at_depth(self, recipe: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The recipe with so many blocks."""
        ...

    def of_blocks(self, recipe: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
        """The recipe with blocks like its own at these places, in this order."""
        ...

    def kinds(self, recipe: Mapping[str, Any], depth: int) -> list[int]:
        """For each of so many blocks the place of the first that is like it."""
        ...

    def parts(self, recipe: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Places of blocks that come again and again together; of all kinds one part has each."""
        ...

    def looked_at(self, recipe: Mapping[str, Any], seq_lens: Sequence[int]) -> tuple[int, ...]:
        """The lengths to count and trace for `seq_lens`: these, or a shorter one where all that a
        step does and holds grows with its tokens, however long its samples are."""
        ...

    def untraced(self, recipe: Mapping[str, Any], device_kind: str) -> str:
        """Why a trace says nothing of what its models hold on such a device; empty where it
        does."""
        ...

    def block_floats(self, recipe: Mapping[str, Any], device_kind: str) -> float:
        """2-byte floats a token and channel that a block keeps for its backward pass, roughly."""
        ...


FAMILIES: dict[str, Family] = {"gpt": gpt.FAMILY, "hf": hf.Hf(), "factory": factory.Factory()}


def family_name(model: str) -> str:
    """The row of `FAMILIES` that `model`, as it is asked for, is of.

    Raises:
        UsageError: there is no such model.
    """
    prefix, found, _ = model.partition(":")
    if model == "gpt" or (found and prefix in FAMILIES and prefix != "gpt"):
        return prefix
    if model in hf.ready():
        return "hf"
    if "/" in model or Path(model).is_dir():
        raise UsageError(f"--model {model}: unknown; did you mean hf:{model}?")
    raise UsageError(
        f"--model {model}: unknown model; known: gpt, hf:PATH for a config of transformers,"
        f" factory:MODULE:FUNCTION for your own, and {', '.join(hf.kept())}, each also with"
        f" {hf.TINY}"
    )
