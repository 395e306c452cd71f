"""Experts that run in turn get tokens where nothing is computed, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.result.best import Best
from probes.routing import shares
from tests.support.models import uncounted
from tests.support.on_cards import study

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

TOKENS, INNER = 16 * 512, 1024


def test_a_hot_expert_of_those_in_turn_is_weighed(tmp_path: Path) -> None:
    config = uncounted("mixtral-tiny").recipe["config"]
    changed = {"experts_implementation": "eager", "intermediate_size": INNER}
    (tmp_path / "moe.json").write_text(json.dumps(config | changed))
    study(
        tmp_path / "study", "--device", "emulated:1xA100-40GB", "--model",
        f"hf:{tmp_path / 'moe.json'}", "--seq-len", "512", "--micro-batch", "16",
        "--checkpointing", "none", "--engine", "ddp",
    )  # fmt: skip
    found = Best.read(tmp_path / "study" / "best.json").measured.phases
    assert found is not None
    rows = {way: int(TOKENS * shares(way, 4, 2)[0]) for way in ("balanced", "hot")}
    assert rows["hot"] > 1.7 * rows["balanced"]
    train, hot = found["train"].peak_bytes.allocated, found["hot"].peak_bytes.allocated
    assert train > 3 * 2 * TOKENS * INNER * 2  # gate, up and their product, kept in bf16
    assert hot - train > (rows["hot"] - rows["balanced"]) * INNER * 2
