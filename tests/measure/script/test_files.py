"""Files that a script's command names, made for each candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.measure.script.files import Files
from autotune.measure.testbed.script_space import command_of
from tests.support.launches import space_of


def written(folder: Path, script: str, replicas: int | None = None, **more: str) -> dict[str, str]:
    """Paths by name, of the first candidate."""
    space = space_of(script, **{"seq_len": "", "micro_batch": "4", "global_batch": "8"} | more)
    files = Files(command_of(space.workload), space, "cpu", seed=5)
    files.write(space.candidates[0], folder, replicas)
    return files.paths(folder)


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def test_deepspeed_is_told_batches_and_stage_and_makes_no_optimizer(tmp_path: Path) -> None:
    paths = written(tmp_path, "true {deepspeed_config}", zero="2", capacity_bytes="1GiB")
    config = read(paths["deepspeed_config"])
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 2
    assert config["train_batch_size"] == 8
    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["reduce_bucket_size"] * 4 < 2**30 / 10
    assert "optimizer" not in config


@pytest.mark.parametrize(("replicas", "accum", "whole"), [(None, 1, None), (1, 2, 8), (2, 1, 8)])
def test_a_global_batch_is_shared_by_replicas(
    replicas: int | None, accum: int, whole: int | None, tmp_path: Path
) -> None:
    """DeepSpeed counts the whole itself until somebody knows them."""
    script = "true {deepspeed_config} {training_args} {accelerate_config}"
    paths = written(tmp_path, script, replicas, zero="2", world_size="2")
    arguments = read(paths["training_args"])
    assert arguments["gradient_accumulation_steps"] == accum
    config = yaml.safe_load(Path(paths["accelerate_config"]).read_text())
    assert config["num_processes"] == 2
    beside = config["deepspeed_config"]["deepspeed_config_file"]
    assert Path(beside).parent == tmp_path
    for found in (read(paths["deepspeed_config"]), arguments["deepspeed"], read(beside)):
        assert found["zero_optimization"]["stage"] == 2
        assert found["gradient_accumulation_steps"] == accum
        assert found.get("train_batch_size") == whole


def test_a_file_of_the_user_is_filled_in_as_the_command_is(tmp_path: Path) -> None:
    (mine := tmp_path / "own.yaml").write_text(
        "data: {batch: {micro_batch}, accum: {grad_accum}}\nseed: {seed}\nto: {out}\n"
        "kept: [${home}, {{micro_batch}}, {a: 1}]\n"
    )
    paths = written(tmp_path / "a", f"true {{file:{mine}}}")
    path = paths[f"file:{mine}"]
    assert Path(path) == tmp_path / "a" / "own" / "0" / "own.yaml"
    assert Path(path).read_text() == (
        f"data: {{batch: 4, accum: 2}}\nseed: 5\nto: {paths['out']}\n"
        "kept: [${home}, {micro_batch}, {a: 1}]\n"
    )


def test_files_of_the_user_overwrite_neither_each_other_nor_exports(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "launch.sh").write_text(f"{folder} {{micro_batch}} {{grad_accum}}")
    mine = [f"file:{tmp_path / folder / 'launch.sh'}" for folder in ("x", "y")]
    paths = written(tmp_path / "a", f"true {{{mine[0]}}} {{{mine[1]}}}")
    assert [Path(paths[name]).read_text() for name in mine] == ["x 4 2", "y 4 2"]
    assert not (tmp_path / "a" / "launch.sh").exists()


def test_a_rate_that_is_set_makes_deepspeed_s_optimizer(tmp_path: Path) -> None:
    paths = written(tmp_path, "true {deepspeed_config}", zero="3", given="lr=3e-4")
    assert read(paths["deepspeed_config"])["optimizer"]["params"]["lr"] == 3e-4


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["0", "2"])
def test_transformers_takes_its_arguments(tmp_path: Path, zero: str) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    kind: Any = TrainingArguments
    paths = written(tmp_path, "true {training_args}", zero=zero, checkpointing="full")
    (found,) = HfArgumentParser(kind).parse_json_file(paths["training_args"])
    assert found.per_device_train_batch_size == 4
    assert found.gradient_accumulation_steps == 2
    assert found.activation_checkpointing is True
    assert found.output_dir == str(tmp_path / "out")
