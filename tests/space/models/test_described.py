"""What a config says of a script's model."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.space.models.described import described

READY = resources.files("autotune.space.models.ready")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 512, "intermediate_size": 128,
}  # fmt: skip


def config(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03), ("qwen3-8b", 8.19), ("mixtral", 46.7), ("gpt2", 0.124),
    ],
)  # fmt: skip
def test_parameters_are_the_published_ones(name: str, billions: float, tmp_path: Path) -> None:
    kept = json.loads((READY / f"{name}.json").read_text())["config"]
    found = described(config(tmp_path, **kept), "--model-config")
    assert found.shape(found.layers, [8]).parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_flops_count_the_experts_that_a_token_goes_to(tmp_path: Path) -> None:
    moe = {"num_local_experts": 8, "num_experts_per_tok": 2}
    dense, sparse = (described(config(tmp_path, **LLAMA, **more), "-") for more in ({}, moe))
    each = 3 * 64 * 128 * 6
    a, b = (found.shape(6, [8]) for found in (dense, sparse))
    assert b.parameters - a.parameters == 7 * each
    assert b.flops_per_token(8) - a.flops_per_token(8) == 6 * each
    assert (dense.heads, dense.kv_heads, sparse.experts) == (8, 4, 8)


def test_the_text_model_of_several_media_counts(tmp_path: Path) -> None:
    whole = config(tmp_path, model_type="gemma3", text_config=LLAMA)
    assert described(whole / "config.json", "-").layers == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"), ("[1]", "no JSON object"),
        (json.dumps({**LLAMA, "num_hidden_layers": 0}), "no num_hidden_layers"),
        (json.dumps({"a": 1}), "no num_hidden_layers"), (None, "name a config.json"),
    ],
)  # fmt: skip
def test_what_is_no_config_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as error:
        described(tmp_path, "--model-config")
    assert str(error.value).startswith(f"--model-config {tmp_path}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
