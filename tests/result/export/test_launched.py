"""Exports launch as they are: in each tool, from inside, the settings are the result's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.result.best import Best
from autotune.result.export import write
from tests.support.choice import campaign
from tests.support.exported import result
from tests.support.namespaces import free_port
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SCRIPT = ROOT / "tests" / "support" / "launched.py"
MODEL = "llama-3-8b-tiny"


def launched(best: Best, folder: Path, how: str, launcher: str = "torchrun") -> dict[str, Any]:
    """What the training script saw that the export's own launch.sh started."""
    write(best, folder)
    beside = Path(sys.executable).parent
    here = os.environ | {
        "LAUNCHER": launcher, "PATH": f"{beside}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    nodes, port = best.config.nodes, str(free_port())
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if nodes > 1 else {}
    logs = [folder / f"node{node}.log" for node in range(nodes)]
    ran = []
    for node, log in enumerate(logs):
        with log.open("w") as file:
            ran.append(subprocess.Popen(
                [str(folder / "launch.sh"), str(SCRIPT), how, str(folder)], cwd=folder,
                env=here | said | ({"NODE_RANK": str(node)} if said else {}),
                stdout=file, stderr=subprocess.STDOUT,
            ))  # fmt: skip
    try:
        for each, log in zip(ran, logs, strict=True):
            assert each.wait(300) == 0, log.read_text()[-3000:]
    finally:
        for each in ran:
            each.terminate()
    found: dict[str, Any] = json.loads((folder / f"seen-{how}.json").read_text())
    return found


def has(found: dict[str, Any], **expected: Any) -> None:
    assert {name: found.get(name) for name in expected} == expected


BATCHES = {"micro_batch": 2, "grad_accum": 4, "world_size": 2}


@pytest.mark.parametrize("launcher", [*campaign("torchrun"), "deepspeed"])
def test_deepspeed(tmp_path: Path, launcher: str) -> None:
    best = result("deepspeed", 2, model=MODEL)
    found = launched(best, tmp_path, "deepspeed", launcher)
    has(found, **BATCHES, zero_stage=2, offload="none", steps=3)


@pytest.mark.parametrize("launcher", [*campaign("torchrun"), "accelerate"])
def test_two_nodes_of_one_rank_each(tmp_path: Path, launcher: str) -> None:
    """Both are this machine."""
    best = result("deepspeed", 2, model=MODEL, nodes=2)
    how = "accelerate" if launcher == "accelerate" else "deepspeed"
    found = launched(best, tmp_path, how, launcher)
    has(found, **BATCHES, zero_stage=2)


@pytest.mark.campaign
def test_lightning_over_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = launched(result("ddp", 0, model=MODEL, nodes=2), tmp_path, "lightning")
    has(found, **BATCHES, strategy="DDPStrategy", num=2)


def test_accelerate_with_deepspeed(tmp_path: Path) -> None:
    best = result("deepspeed", 3, model=MODEL)
    found = launched(best, tmp_path, "accelerate", "accelerate")
    has(found, **BATCHES, zero_stage=3)


@pytest.mark.parametrize(
    ("engine", "stage", "checkpointing"),
    [*campaign(("ddp", 0, "1/2")), ("deepspeed", 2, "full")],
)
def test_transformers_trainer(tmp_path: Path, engine: str, stage: int, checkpointing: str) -> None:
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
    pytest.importorskip("transformers" if how == "hf" else how)
    engine, stage = ("deepspeed", 2) if how == "lightning" else ("fsdp", 3)
    best = result(engine, stage, model=MODEL, dtype="bf16", kind="cuda", world_size=1)
    launcher = "accelerate" if how == "accelerate" else "torchrun"
    found = launched(best, tmp_path, how, launcher)
    has(found, micro_batch=2, world_size=1)
    assert found.get("zero_stage", stage) == stage
