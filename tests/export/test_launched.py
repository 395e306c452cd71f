"""Exports launch as they are: in each tool, from inside, the settings are the result's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.export import write
from autotune.result.best import Best
from tests.support.exported import result
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SCRIPT = ROOT / "tests" / "support" / "launched.py"
MODEL = "llama-3-8b-tiny"


def launched(best: Best, folder: Path, how: str, launcher: str = "torchrun") -> dict[str, Any]:
    """What the training script saw that the export's own launch.sh started."""
    write(best, folder)
    beside = Path(sys.executable).parent
    environment = os.environ | {
        "LAUNCHER": launcher, "PATH": f"{beside}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    ran = subprocess.run(
        [str(folder / "launch.sh"), str(SCRIPT), how, str(folder)], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    found: dict[str, Any] = json.loads((folder / f"seen-{how}.json").read_text())
    return found


def has(found: dict[str, Any], **expected: Any) -> None:
    assert {name: found.get(name) for name in expected} == expected


BATCHES = {"micro_batch": 2, "grad_accum": 4, "world_size": 2}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_deepspeed(tmp_path: Path, launcher: str) -> None:
    best = result("deepspeed", 2, model=MODEL)
    found = launched(best, tmp_path, "deepspeed", launcher)
    has(found, **BATCHES, zero_stage=2, offload="none", steps=3)


def test_accelerate_with_deepspeed(tmp_path: Path) -> None:
    best = result("deepspeed", 3, model=MODEL)
    found = launched(best, tmp_path, "accelerate", "accelerate")
    has(found, **BATCHES, zero_stage=3)


@pytest.mark.parametrize(
    ("engine", "stage", "checkpointing"),
    [("ddp", 0, "1/2"), ("deepspeed", 2, "full")],
)
def test_the_trainer_of_transformers(
    tmp_path: Path, engine: str, stage: int, checkpointing: str
) -> None:
    best = result(engine, stage, model=MODEL, dtype="bf16", checkpointing=checkpointing)
    found = launched(best, tmp_path, "hf")
    has(found, **BATCHES, zero_stage=stage, dtype="bf16", checkpointing=True, steps=3)


def test_trls_sft_trainer(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    found = launched(result("ddp", 0, model=MODEL), tmp_path, "trl")
    has(found, **BATCHES, checkpointing=False, steps=3)


def test_lightnings_trainer(tmp_path: Path) -> None:
    """Its DeepSpeed strategy is for GPUs alone."""
    pytest.importorskip("lightning")
    found = launched(result("ddp", 0, model=MODEL), tmp_path, "lightning")
    has(found, **BATCHES, strategy="DDPStrategy", num=2)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["hf", "accelerate", "lightning"])
def test_on_a_gpu(tmp_path: Path, how: str) -> None:
    """What needs one: FSDP2 of accelerate, Lightning's DeepSpeed."""
    engine, stage = ("deepspeed", 2) if how == "lightning" else ("fsdp", 3)
    best = result(engine, stage, model=MODEL, dtype="bf16", kind="cuda", world_size=1)
    launcher = "accelerate" if how == "accelerate" else "torchrun"
    found = launched(best, tmp_path, how, launcher)
    has(found, micro_batch=2, world_size=1)
    assert found.get("zero_stage", stage) == stage
