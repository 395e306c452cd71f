"""The request for a model, and the defaults of model families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import UsageError
from autotune.wire.recipe import HEAD_DIM, LORA_ALPHA

Mlp = Literal["relu2", "swiglu"]
"""Squared ReLU (arXiv 2109.08668) in 4 x width, or SwiGLU (arXiv 2002.05202) in 8/3 x width."""


MICRO_BATCHES = {
    "cpu": tuple(range(1, 17)),
    "cuda": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128),
}
LENGTHS = {"cpu": (64, 128), "cuda": (1024, 2048)}
ImageSize = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class Defaults:
    """Values of a model's axes, and the size of its vocabulary."""

    depth: tuple[int, ...]
    seq_len: tuple[int, ...]
    micro_batch: tuple[int, ...]
    vocab_size: int
    """0 if the model has its own."""


BLOCK_FLOATS = 34
"""Floats a token and channel that a block keeps for its backward pass, without a trace. They are
those of a plain transformer (arXiv 2205.05198, equation 2, in 2-byte floats)."""


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The model that the command line asks for."""

    model: str
    task: str | None = None
    target_len: int | None = None
    image_size: tuple[ImageSize, ...] | None = None
    trust_remote_code: bool = False
    lora: Lora | None = None
    gpt: GptTraits | None = None
    """Traits of a gpt, if the user gave any."""
    fused: bool = False
    """Whether to assume kernel libraries that are not installed here."""

    def refuse_what_is_of_transformers(self, who: str) -> None:
        """Raises `UsageError` for options that only models of transformers have."""
        given = {
            "--task": self.task, "--target-len": self.target_len, "--lora": self.lora,
            "--image-size": shown_sizes(self.image_size or ()) or None,
            "--trust-remote-code": self.trust_remote_code or None,
        }  # fmt: skip
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} {value}: {who} has none; leave it out")


@dataclass(frozen=True, kw_only=True)
class GptTraits:
    aspect_ratio: int = 64
    """Channels for each block, if no width is given."""
    head_dim: int = HEAD_DIM
    mlp: Mlp = "relu2"
    qk_norm: bool = False
    """Whether queries and keys are normed, without weights (arXiv 2010.04245)."""
    tied: bool = False
    """Whether embedding and head are one matrix."""
    softcap: int | None = None
    """A tanh keeps logits within this of 0 (Gemma 2, arXiv 2408.00118, section 2)."""


def parse_sizes(text: str, flag: str) -> tuple[ImageSize, ...]:
    """Sizes of images as "448x448,1344x896". Raises UsageError if the text has another form."""
    found = [re.fullmatch(r"\s*(\d{1,5})x(\d{1,5})\s*", part) for part in text.split(",")]
    sizes = tuple((int(each[1]), int(each[2])) for each in found if each)
    if len(sizes) < len(found) or not all(map(all, sizes)):
        raise UsageError(f"{flag} {text}: write WIDTHxHEIGHT in pixels, as 448x448,1344x896")
    return sizes


def shown_sizes(sizes: Iterable[Sequence[int]]) -> str:
    """Sizes as `parse_sizes` reads them."""
    return ",".join(f"{width}x{height}" for width, height in sizes)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (arXiv 2106.09685). They are trained, the model is not."""

    rank: int
    targets: tuple[str, ...] = ()
    """Names of the modules with adapters; if empty, all linear modules but the head."""
    dropout: float = 0.0
    """The share of an adapter's inputs that are zeroed."""

    @property
    def alpha(self) -> int:
        """The scale of their product, as a multiple of 1/rank."""
        return LORA_ALPHA * self.rank

    @property
    def recipe(self) -> dict[str, Any]:
        """As JSON. Recipes without dropout are those of earlier traces."""
        asked = {"rank": self.rank, "targets": self.targets}
        return asked | ({"dropout": self.dropout} if self.dropout else {})

    def __str__(self) -> str:
        dropout = f",dropout={self.dropout:g}" if self.dropout else ""
        targets = f",targets={'+'.join(self.targets)}" if self.targets else ""
        return f"r={self.rank}{dropout}{targets}"


def parse_lora(text: str, flag: str) -> Lora:
    """Adapters as "r=16" or "r=16,dropout=0.05,targets=q_proj+v_proj". Raises UsageError if the
    text has another form."""
    found = re.fullmatch(
        r"\s*r=(\d{1,5})(?:,dropout=(0?\.\d{1,4}|0))?(?:,targets=([\w.]+(?:\+[\w.]+)*))?\s*", text
    )
    if found is None or int(found[1]) < 1:
        raise UsageError(f"{flag} {text}: write r=16 or r=16,dropout=0.05,targets=q_proj+v_proj")
    targets = tuple(found[3].split("+")) if found[3] else ()
    return Lora(int(found[1]), targets, float(found[2] or 0))
