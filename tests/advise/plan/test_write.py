"""What a plan writes is read by the tools' own code, and says that nothing was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.advise.plan.write import README
from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.measure.runner import counting

Run = Callable[..., Any]
SAID = "expected by a plan, not measured: a peak of "
PLAN = ["plan", "--seq-len", "64", "--micro-batch", "2", "--checkpointing", "full",
        "--global-batch", "8"]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "describe", lambda asked, limit_s, start: "not here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "engine", "stage", "offload"),
    [(1, "ddp", 0, "none"), (1, "deepspeed", 2, "optimizer"), (1, "deepspeed", 3, "all"),
     (4, "fsdp", 3, "none")],
)  # fmt: skip
def test_the_tools_read_what_a_plan_writes(
    gpus: int, engine: str, stage: int, offload: str, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
        load_config_from_file,
    )
    from accelerate.utils import DeepSpeedPlugin  # type: ignore[import-untyped]
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import TrainingArguments

    folder = tmp_path / "new" / "folder"
    asked = [*PLAN, "--model", "llama-3-8b-tiny", "--gpus", f"{gpus}x80GiB", "--lora", "r=4",
             "--engine", engine, "--zero", str(stage), "--offload", offload]  # fmt: skip
    assert main([*asked, "--write", str(folder)]) == ExitCode.FOUND
    assert load_config_from_file(str(folder / "accelerate.yaml")).num_processes == gpus
    names = {field.name for field in fields(TrainingArguments)}
    assert set(json.loads((folder / "hf.json").read_text())) <= names
    for path in sorted(folder.iterdir()):
        text = path.read_text()
        if path.suffix == ".yaml":
            assert isinstance(yaml.safe_load(text), dict)
        if path.name.endswith("deepspeed.json"):
            found = DeepSpeedConfig(str(path))
            assert found.zero_optimization_stage == stage
            assert found.gradient_accumulation_steps == 4
            assert DeepSpeedPlugin(hf_ds_config=str(path)).zero_stage == stage
        # Arguments of a Trainer and of LoRA have no room for a remark.
        assert SAID in text or path.name in ("hf.json", "hf-4.json", "trl.json", "trl-lora.json")
    readme = (folder / README).read_text()
    assert readme.startswith("From autotune: ")
    assert all(path.name in readme for path in folder.iterdir() if path.name != README)
    assert ": ./launch.sh train.py\n" in readme  # wherever the folder is taken
    assert str(tmp_path) not in readme
    assert ("A Trainer of transformers takes hf.py" in readme) == (engine == "deepspeed")
    assert (folder / "launch.sh").stat().st_mode & 0o100
    assert json.loads((folder / "trl-lora.json").read_text())["r"] == 4


def test_json_does_not_stop_the_files(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "plan"
    asked = ["plan", "--depth", "48", "--gpus", "2x24GiB", "--seq-len", "2048", "--json"]
    found = run(*asked, "--write", folder)
    first = json.loads(found.out)["rows"][0]
    written = json.loads((folder / "deepspeed.json").read_text())
    assert written["train_micro_batch_size_per_gpu"] == first["candidate"]["micro_batch"]
    assert written["zero_optimization"]["stage"] == first["candidate"]["zero_stage"]
    assert f"Start, all 2 ranks on one machine: {folder}/launch.sh train.py" in found.err
    assert f"{folder}/README.txt has what each leaves to you" in found.err
    needed = "Fits only with settings that are missing here: seq_len 2048, checkpointing full."
    assert written["_comment"].startswith(f"{needed} From autotune: ")
    assert needed not in found.err  # README.txt says it of each file
    assert f"deepspeed: deepspeed.json\n  {needed}\n  Does not" in (folder / README).read_text()


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (["--gpus", "1,2x80GiB", "--write", "new"], ExitCode.USAGE, "--write takes one number"),
        (["--gpus", "80GiB", "--write", "full"], ExitCode.USAGE, "name a new folder"),
        (["--gpus", "80GiB", "--write", "full/file"], ExitCode.USAGE, "name a new folder"),
        (["--gpus", "80GiB", "--write", "full/file/new"], ExitCode.USAGE, "Not a directory"),
        (["--gpus", "1GiB", "--write", "new"], ExitCode.NOTHING_FITS, "nothing fits"),
    ],
)
def test_nothing_is_written_where_it_cannot_be(
    *, more: list[str], code: int, why: str, tmp_path: Path, run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    said = run(*PLAN, "--depth", "24", *more, code=code)
    assert why in said.err
    assert code != ExitCode.USAGE or said.out == ""  # before anything is planned
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]
