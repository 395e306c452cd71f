"""One small real study: what tells most in the least time. tests/probes/test_beside_steps.py has
those of the other engines."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotune.result.best import Best
from tests.support.programs import autotune

TINY = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2",
        "--gpt", "vocab_size=256", "--checkpointing", "none", "--trials", "2", "--finals", "1",
        "--budget", "100s", "--engine", "ddp", "--zero", "0"]  # fmt: skip


def test_a_study_comes_to_a_result(tmp_path: Path) -> None:
    autotune("--out", "study", *TINY, cwd=tmp_path)
    best = Best.read(tmp_path / "study" / "best.json")
    assert (best.config.engine, best.config.zero_stage) == ("ddp", 0)
    trials = pd.read_csv(tmp_path / "study" / "trials.csv")
    assert set(trials["verdict"]) <= {"ok", "pruned"}
    assert set(trials["kind"]) == {"search", "final"}
