"""Configs of transformers from the columns that describe a published run's model."""

from __future__ import annotations

import math
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Any


class NotComparableError(Exception):
    """A row lacks facts, or no engine here runs it; the message says why."""


def config_of(row: dict[str, Any], folder: Path) -> Path:
    """A file with the config of the model that the row's columns describe."""
    make = _CONFIGS.get(row["family"])
    if make is None or any(is_empty(row[name]) for name in ("layers", "hidden", "heads", "vocab")):
        raise NotComparableError("shape unknown")
    path = folder / f"{row['id']}.json"
    path.write_text(dumps(make(row)))
    return path


def is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _llama(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    heads = int(row["heads"])
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "hidden_size": int(row["hidden"]), "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if is_empty(row["kv_heads"]) else int(row["kv_heads"]),
        "intermediate_size": int(row["intermediate"]), "vocab_size": int(row["vocab"]),
        "tie_word_embeddings": row["tied"] == "yes",
        "max_position_embeddings": int(row["seq_len"]),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    } | more  # fmt: skip


def _qwen(row: dict[str, Any]) -> dict[str, Any]:
    if "Qwen3" in row["model"]:
        return _llama(row, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=128)
    return _llama(row, model_type="qwen2", architectures=["Qwen2ForCausalLM"])


def _gemma(row: dict[str, Any]) -> dict[str, Any]:
    size = 128 if "27b" in row["model"] else 256
    if "gemma-2-" in row["model"]:
        return _llama(row, model_type="gemma2", architectures=["Gemma2ForCausalLM"], head_dim=size)
    return _llama(row, model_type="gemma", architectures=["GemmaForCausalLM"], head_dim=size)


def _mixtral(row: dict[str, Any]) -> dict[str, Any]:
    return _llama(row, model_type="mixtral", architectures=["MixtralForCausalLM"],
                  num_local_experts=8, num_experts_per_tok=2)  # fmt: skip


def _bert(row: dict[str, Any]) -> dict[str, Any]:
    return _llama(row, model_type="bert", architectures=["BertForMaskedLM"])


def _gpt(row: dict[str, Any]) -> dict[str, Any]:
    kind = "gpt_bigcode" if "bigcode" in row["model"] else "gpt2"
    name = "GPTBigCodeForCausalLM" if kind == "gpt_bigcode" else "GPT2LMHeadModel"
    return {
        "model_type": kind, "architectures": [name], "n_embd": int(row["hidden"]),
        "n_layer": int(row["layers"]), "n_head": int(row["heads"]),
        "n_inner": None if is_empty(row["intermediate"]) else int(row["intermediate"]),
        "vocab_size": int(row["vocab"]), "n_positions": int(row["seq_len"]),
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip


def _neox(row: dict[str, Any]) -> dict[str, Any]:
    return _llama(row, model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"])


def _bloom(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "bloom", "architectures": ["BloomForCausalLM"],
        "hidden_size": int(row["hidden"]), "n_layer": int(row["layers"]),
        "n_head": int(row["heads"]), "vocab_size": int(row["vocab"]),
    }  # fmt: skip


def _t5(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
        "d_model": int(row["hidden"]), "d_ff": int(row["intermediate"]),
        "d_kv": 128 if "3b" in row["model"] else 64, "num_layers": int(row["layers"]),
        "num_decoder_layers": int(row["layers"]), "num_heads": int(row["heads"]),
        "vocab_size": int(row["vocab"]), "tie_word_embeddings": row["tied"] == "yes",
        "is_encoder_decoder": True, "decoder_start_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip


_CONFIGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama, "mistral": _llama, "granite": _llama, "phi": _llama, "qwen": _qwen,
    "gemma": _gemma, "mixtral": _mixtral, "bert": _bert, "gpt": _gpt, "neox": _neox,
    "bloom": _bloom, "t5": _t5,
}  # fmt: skip
"""How each family's columns become a config of transformers."""
