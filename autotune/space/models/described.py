"""The model of a user's script, as a config of transformers describes it.

Only numbers are read; the model is not built. Parameters are counted as for usual decoders:
attention, an MLP of two or three matrices, experts, embedding and head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.space.models.counted import CountedShape

_NAMES = {
    "layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocab_size": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "inner": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "chosen": ("num_experts_per_tok", "top_k"),
    "expert_inner": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}
"""Names of a number in configs; the first four numbers are required."""
_NEEDED = 4
_PLAIN_MLPS = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "bert",
               "roberta", "starcoder2", "mpt")  # fmt: skip
"""Types of model whose MLP has two matrices instead of three."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Numbers of a whole decoder."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    vocab_size: int
    attention: int
    """Parameters of a layer's attention."""
    mlp: int
    """Parameters of a layer's MLP, if it has no experts."""
    experts: int = 0
    """Number of experts of a layer."""
    expert: int = 0
    """Parameters of an expert."""
    chosen: int = 0
    """Number of experts of a token."""
    dense_layers: int = 0
    """Layers without experts, in a model that has some."""
    tied: bool = False

    def expert_parameters(self, depth: int) -> int:
        """Parameters in experts, of a model of so many layers."""
        return self.experts * self.expert * max(0, depth - self.dense_layers)

    def shape(self, depth: int, seq_lens: list[int]) -> CountedShape:
        """Counts of a model of so many layers."""
        sparse = max(0, depth - self.dense_layers) if self.experts else 0
        plain = depth * self.attention + (depth - sparse) * self.mlp
        blocks = plain + self.expert_parameters(depth)
        head = self.vocab_size * self.width
        parameters = blocks + head * (1 if self.tied else 2)
        active = plain + sparse * self.chosen * self.expert + head
        return CountedShape(
            depth=depth, width=self.width, vocab_size=self.vocab_size, parameters=parameters,
            trainable=parameters, block_matrices=blocks,
            largest_block=self.attention + max(self.mlp, self.experts * self.expert),
            seq_lens=seq_lens,
            flops=[6.0 * active + 12.0 * depth * self.width * length for length in seq_lens],
        )  # fmt: skip


def described(path: Path, flag: str) -> Description:
    """The model that the config at `path`, a file or its folder, describes. Raises UsageError if
    there is no config, or it lacks a number."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; name a config.json") from error
    except ValueError as error:
        raise UsageError(f"{flag} {path}: not JSON: {error!s:.100}") from error
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        raise UsageError(f"{flag} {path}: not a config of transformers; it is no JSON object")
    return _of(config, f"{flag} {path}")


def _of(config: Mapping[str, Any], what: str) -> Description:
    said = {name: _number(config, names) for name, names in _NAMES.items()}
    for name, names in list(_NAMES.items())[:_NEEDED]:
        if not said[name]:
            raise UsageError(f"{what}: not a config of transformers; it has no {names[0]}")
    width, heads = said["width"], said["heads"]
    kv_heads, inner = said["kv_heads"] or heads, said["inner"] or 4 * width
    head_dim = said["head_dim"] or width // heads
    matrices = 2 if config.get("model_type") in _PLAIN_MLPS else 3
    return Description(
        layers=said["layers"], width=width, heads=heads, kv_heads=kv_heads,
        vocab_size=said["vocab_size"],
        attention=2 * width * head_dim * (heads + kv_heads),
        mlp=matrices * width * inner,
        experts=said["experts"],
        expert=matrices * width * (said["expert_inner"] or inner) if said["experts"] else 0,
        chosen=said["chosen"] or 1 if said["experts"] else 0,
        dense_layers=said["dense_layers"],
        tied=config.get("tie_word_embeddings", config.get("model_type") == "gpt2") is True,
    )  # fmt: skip


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first of the `names` with a count; 0 without any."""
    found = (config[name] for name in names if type(config.get(name)) is int and config[name] > 0)
    return next(found, 0)
