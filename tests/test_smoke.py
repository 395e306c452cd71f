"""One small real study with each engine: what tells most in the least time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autotune.result.best import Best
from autotune.space.engines import ENGINES
from tests.support.programs import autotune

TINY = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2",
        "--gpt", "vocab_size=256", "--checkpointing", "none", "--trials", "2", "--finals", "1",
        "--budget", "100s"]  # fmt: skip


MARKS = {"deepspeed": [pytest.mark.slow, pytest.mark.campaign], "fsdp": [pytest.mark.slow]}
"""`tests/test_main_job.py` has a study with DeepSpeed."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [])) for name in ENGINES]
)
def test_a_study_comes_to_a_result(name: str, tmp_path: Path) -> None:
    stage = ENGINES[name].stages[-1]
    ranks = 2 if stage else 1
    how = ("--engine", name, "--zero", stage, "--world-size", ranks)
    autotune("--out", "study", *TINY, *how, cwd=tmp_path)
    best = Best.read(tmp_path / "study" / "best.json")
    assert (best.config.engine, best.config.zero_stage) == (name, stage)
    trials = pd.read_csv(tmp_path / "study" / "trials.csv")
    assert set(trials["verdict"]) <= {"ok", "pruned"}
    assert set(trials["kind"]) == {"search", "final"}
