"""A model of the user's own, through the command line and real ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests.support.programs import ROOT, autotune

OWN = ROOT / "tests" / "support" / "own.py"
Ran = subprocess.CompletedProcess[str]


def tune(folder: Path, *flags: str, code: int = 0) -> Ran:
    (folder / "mine.py").write_bytes(OWN.read_bytes())
    return autotune(
        "--device", "cpu", "--budget", "100s", "--trials", "3", "--finals", "1", "--micro-batch",
        "1,4", "--seq-len", "8", *flags, code=code, cwd=folder, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
def test_a_function_of_ours_is_tuned(tmp_path: Path) -> None:
    """Its batch is of floats, and the weights are not fp32."""
    how = ["--world-size", "2", "--engine", "deepspeed", "--zero", "3", "--dtype", "bf16"]
    tune(tmp_path, "--model", "factory:mine:known", *how, "--out", "study")
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert best["config"]["model"] == "factory:mine:known"
    measured = best["measured"]
    assert measured["model_flops_per_s"] == pytest.approx(6000 * measured["tokens_per_s"])
    said = best["exports"]["deepspeed"]
    assert said["zero_allow_untested_optimizer"]
    assert "optimizer" not in said


@pytest.mark.slow
def test_what_the_loss_does_not_use_is_unsupported_by_ddp_alone(tmp_path: Path) -> None:
    two = ["--model", "factory:mine:unused", "--world-size", "2", "--zero", "0,2"]
    tune(tmp_path, *two, "--checkpointing", "none", "--out", "study")
    trials = pd.read_csv(tmp_path / "study" / "trials.csv")
    refused = trials[(trials.zero_stage == 0) & (trials.verdict == "unsupported")]
    assert "Expected to have finished reduction" in refused.reason.iloc[0]
    assert json.loads((tmp_path / "study" / "best.json").read_text())["config"]["zero_stage"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "code", "what"),
    [
        ("factory:nowhere:small", 2, "nowhere:small: No module named 'nowhere', looked for in"),
        ("factory:mine:broken", 5, "RuntimeError: my own mistake"),
        ("factory:mine:wrong_loss", 5, "KeyError: 'y'"),
    ],
)
def test_what_is_not_made_is_said_once(tmp_path: Path, model: str, code: int, what: str) -> None:
    ran = tune(tmp_path, "--model", model, "--dry-run", code=code)
    last = ran.stderr.strip().splitlines()[-1]
    assert what in last, ran.stderr
    assert last.startswith(f"autotune: --model {model}: ")
    shown = ran.stderr.count("Traceback")
    assert shown == (1 if code == 5 else 0)
    assert ("mine.py" in ran.stderr) == (code == 5)


@pytest.mark.slow
def test_flops_that_are_none_are_said_to_be_a_guess(tmp_path: Path) -> None:
    ran = tune(tmp_path, "--model", "factory:mine:no_flops", "--dry-run")
    assert "not counted: ValueError: FLOPs of a sample came out as 0.0" in " ".join(
        ran.stdout.split()
    )
