"""An evaluation and a checkpoint of a model, after its steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from autotune.commands.exits import ExitCode
from autotune.result.best import Best
from probes import engines
from probes.engines import evaluated
from probes.engines.ddp import DdpEngine
from probes.scratch import BriefFiles
from tests.support.choice import campaign
from tests.support.programs import autotune, stopped

TINY = ("--device", "cpu", "--model", "gpt2-tiny", "--depth", "1", "--seq-len", "32",
        "--micro-batch", "2", "--checkpointing", "none", "--finals", "1")  # fmt: skip


class Told(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> Any:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return type("Output", (), {"logits": self.drop(x).bfloat16()})


def test_an_evaluation_has_no_gradients_and_keeps_logits_in_fp32() -> None:
    module = Told()
    [logits] = evaluated(module, lambda: module(torch.ones(2, 3)))
    assert module.modes == [(False, False)]
    assert module.training
    assert (logits.dtype, float(logits.sum())) == (torch.float32, 6)
    module(torch.ones(1))
    assert evaluated(nn.Identity(), lambda: None) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "save"),
    [("ddp", "full"), ("fsdp", "sharded"), ("deepspeed", "full"), *campaign(("fsdp", "full"))],
)  # fmt: skip
def test_ranks_of_any_engine_evaluate_and_save(engine: str, save: str, tmp_path: Path) -> None:
    stage = {"ddp": "0"}.get(engine, "3")
    trials = tmp_path / "study" / "trials.csv"
    code, said = stopped(
        *TINY, "--world-size", "2", "--engine", engine, "--zero", stage, "--budget", "2m",
        "--eval-batch", "64", "--save", save, "--out", trials.parent,
        when=lambda: trials.exists() and ",phases," in trials.read_text(),
    )  # fmt: skip
    assert code in (ExitCode.FOUND, ExitCode.STOPPED), said
    best = Best.read(tmp_path / "study" / "best.json")
    assert (best.config.engine, best.config.zero_stage) == (engine, int(stage))
    if engine == "deepspeed":
        exported = best.exports["deepspeed"]
        assert exported["train_micro_batch_size_per_gpu"] == best.config.micro_batch
        assert exported["zero_optimization"]["stage"] == int(stage)
    assert (best.unseen, best.phase_args) == ((), True)
    phases = best.measured.phases
    assert phases is not None
    assert [phases[name].count for name in ("evaluate", "save")] == [1, 1]
    assert phases["evaluate"].peak_bytes.device > phases["train"].peak_bytes.device
    assert best.measured.peak_bytes.device == max(p.peak_bytes.device for p in phases.values())
    assert (phases["save"].written_bytes or 0) > 2**18
    assert not [each for each in (tmp_path / "study").rglob("*") if ".pt" in each.name]


@pytest.mark.slow
def test_a_model_whose_evaluation_has_no_room_does_not_win(tmp_path: Path) -> None:
    out = tmp_path / "study"
    autotune(
        *TINY, "--budget", "2m", "--capacity", "1GiB", "--eval-batch", "20000", "--out", out,
        code=3,
    )  # fmt: skip
    last = pd.read_csv(out / "trials.csv").iloc[-1]
    assert (last["kind"], last["verdict"]) == ("phases", "oom")
    assert "ran out of memory in evaluation" in last["reason"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_has_what_is_trained_and_its_optimizer(rank: int, tmp_path: Path) -> None:
    scratch = BriefFiles(str(tmp_path))
    module = nn.Linear(64, 64)
    module.bias.requires_grad = False
    optimizer = torch.optim.AdamW(engines.trained(module))
    module(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    engine = object.__new__(DdpEngine)
    engine._module, engine._optimizers, engine._rank = module, [optimizer], rank
    engine.save(scratch, full=True)
    if rank:  # the first one saves for all
        assert scratch.written_bytes == 0
    else:
        assert 3 * 4 * 64**2 < scratch.written_bytes < 4 * 4 * 64**2
    assert not any(tmp_path.iterdir())


def test_a_folder_of_another_machine_keeps_nothing_of_a_checkpoint(tmp_path: Path) -> None:
    scratch = BriefFiles(str(tmp_path / "elsewhere"))
    scratch(torch.ones(2**16))
    assert (scratch.refused, scratch.written_bytes) == (True, 0)


def test_a_disk_without_room_keeps_nothing_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = iter([2**21, 2**21, *[2**20] * 100])  # the first is that before it begins
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=next(room), f_frsize=1))
    scratch = BriefFiles(str(tmp_path))
    scratch(torch.ones(2**16))
    scratch(torch.ones(2**16))
    assert scratch.refused
    assert not any(tmp_path.iterdir())
