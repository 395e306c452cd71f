"""The `gpt` family: a decoder with rotary positions and RMSNorm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from autotune.errors import UsageError
from autotune.space.models.defaults import (
    LENGTHS,
    MICRO_BATCHES,
    Defaults,
    GptTraits,
    Mlp,
    ModelRequest,
)
from autotune.space.models.family import Family, ModelShape
from autotune.wire.recipe import mlp_width

BLOCK_FLOATS = 23
"""Floats a token and channel that a block keeps for its backward pass (probes/models/gpt.py)."""

# A 2-core CPU can search most of its space in two minutes. A data-centre GPU has a 30-minute
# search, and its largest candidates do not fit. A small vocabulary on the CPU keeps the head from
# taking the whole step of a small model.
_DEFAULTS = {
    "cpu": Defaults((2, 4), LENGTHS["cpu"], MICRO_BATCHES["cpu"], 4096),
    "cuda": Defaults((12, 16, 20, 24), LENGTHS["cuda"], MICRO_BATCHES["cuda"], 32768),
}


@dataclass(frozen=True, kw_only=True)
class GptShape(ModelShape):
    @property
    def matmul_parameters(self) -> int:
        """Parameters that multiply activations: the blocks' matrices and the head."""
        return self.block_matrices + self.vocab_size * self.width

    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of forward and backward per token: 6·N + 12·L·d·T.

        N counts the parameters that multiply activations. Recomputation is not counted. Source:
        PaLM (arXiv 2204.02311), appendix B.
        """
        return 6.0 * self.matmul_parameters + 12.0 * self.depth * self.width * seq_len


def shape_of(depth: int, width: int, vocab_size: int, traits: GptTraits) -> GptShape:
    """The dimensions of `depth` blocks of `width` channels.

    Attention has 4·d² parameters, the MLP two matrices or SwiGLU's three. Two norms a block, the
    last norm and an untied embedding multiply no activations.
    """
    matrices = 3 if traits.mlp == "swiglu" else 2
    block = 4 * width**2 + matrices * width * mlp_width(width, traits.mlp)
    embeddings = (1 if traits.tied else 2) * vocab_size * width
    parameters = depth * block + embeddings + (2 * depth + 1) * width
    return GptShape(
        depth=depth, width=width, vocab_size=vocab_size, parameters=parameters,
        trainable=parameters, block_matrices=depth * block, largest_block=block,
        block_floats=BLOCK_FLOATS,
    )  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """A known model's traits, vocabulary and optimizer."""

    traits: GptTraits
    vocab_size: int
    optimizer: Literal["adamw", "muon"]


PRESETS = {
    "nanochat": Preset(GptTraits(head_dim=128, qk_norm=True, softcap=15), 65536, "muon"),
}
"""nanochat: its gpt.py and base_train.py (github.com/karpathy/nanochat), of late 2025."""


_EXAMPLES = {"width": 512, "vocab_size": 32768, "aspect_ratio": 64, "head_dim": 64, "softcap": 15}
_WORDS = {"mlp": get_args(Mlp), "qk_norm": ("true", "false"), "tied": ("true", "false")}


def parse_gpt(text: str, flag: str) -> dict[str, Any]:
    """Traits, width and vocabulary of a gpt as "width=512,mlp=swiglu,qk_norm=true". Raises
    UsageError if there is no such trait or value, or two exclude each other."""
    found: dict[str, Any] = {}
    for part in (part.strip() for part in text.split(",")):
        name, _, value = part.partition("=")
        if name in _EXAMPLES:
            if re.fullmatch(r"0*[1-9]\d{0,8}", value) is None:
                raise UsageError(
                    f"{flag} {part}: must be a whole number of at least 1, e.g. {flag}"
                    f" {name}={_EXAMPLES[name]}"
                )
            found[name] = int(value)
        elif value in _WORDS.get(name, ()):
            found[name] = value if name == "mlp" else value == "true"
        elif name in _WORDS:
            known = " or ".join(f"{flag} {name}={word}" for word in _WORDS[name])
            raise UsageError(f"{flag} {part}: write {known}")
        else:
            known = ", ".join((*_EXAMPLES, *_WORDS))
            raise UsageError(f"{flag} {part}: unknown; write {flag} width=512; known: {known}")
    if "width" in found and "aspect_ratio" in found:
        raise UsageError(f"{flag} {text}: width says aspect_ratio already; give one of them")
    if found.get("head_dim", 2) % 2:
        raise UsageError(
            f"{flag} head_dim={found['head_dim']}: must be even, for rotary positions, e.g."
            f" {flag} head_dim=64"
        )
    return found


class Gpt(Family):
    """The family: the width follows from the depth unless it is given."""

    counted = False
    width_rule = f"{GptTraits().aspect_ratio} x depth"

    def recipe(self, asked: ModelRequest) -> dict[str, Any]:
        """Its traits, if any of them differs from the default."""
        asked.refuse_what_is_of_transformers("gpt")
        return {} if asked.gpt in (None, GptTraits()) else asdict(asked.gpt or GptTraits())

    def shape(
        self,
        depth: int,
        width: int | None,
        vocab_size: int,
        recipe: Mapping[str, Any] | None = None,
    ) -> GptShape:
        traits = GptTraits(**recipe or {})
        heads = -(-traits.aspect_ratio * depth // traits.head_dim)  # rounded up
        return shape_of(depth, width or heads * traits.head_dim, vocab_size, traits)

    def lacks(self, recipe: Mapping[str, Any], axis: str, value: str) -> str:
        if axis == "attention" and value not in ("auto", "sdpa", "eager"):
            return "a gpt has sdpa, which chooses flash kernels itself, and eager"
        return ""

    def defaults(self, recipe: Mapping[str, Any], device_kind: str) -> Defaults:
        return _DEFAULTS[device_kind]


FAMILY = Gpt()
