"""`python -m autotune export`, and results in scripts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.choice import Unconfirmed
from autotune.result.folder.table import Table
from autotune.result.loading import OtherHardwareError
from autotune.space.candidate import Candidate
from tests.support.exported import result
from tests.support.programs import python
from tests.support.records import record

Run = Callable[..., Any]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    result("deepspeed", 2).write(tmp_path / "best.json")
    return tmp_path


def test_exports_stand_beside_the_result(study: Path, run: Run) -> None:
    said, warned = run("export", study)
    assert f"Written: {study / 'exports'}" in said
    assert "deepspeed: does not say model gpt, depth 2, width 128" in warned
    assert json.loads((study / "exports" / "deepspeed.json").read_text())["train_batch_size"] == 16


def test_formats_and_folder_are_as_asked(study: Path, run: Run) -> None:
    asked = ["export", str(study / "best.json"), "--format", "hf, launch"]
    run(*asked, "--out", study / "mine")
    assert {path.name for path in (study / "mine").iterdir()} == {
        "hf.json", "hf-4.json", "hf.py", "launch.sh",
    }  # fmt: skip
    assert not (study / "exports").exists()


def test_an_unconfirmed_result_is_exported_with_a_warning(study: Path, run: Run) -> None:
    document = json.loads((study / "best.json").read_text()) | {"confirmed": False}
    (study / "best.json").write_text(json.dumps(document))
    assert "not confirmed" in run("export", study).err
    assert "WARNING: not confirmed" in (study / "exports" / "launch.sh").read_text()


def test_a_format_has_the_name_of_its_library_too(tmp_path: Path, run: Run) -> None:
    result("ddp", 0, model="llama-3-8b-tiny").write(tmp_path / "best.json")
    run("export", tmp_path, "--format", "transformers", "--out", tmp_path / "to")
    assert (tmp_path / "to" / "hf.json").is_file()


def _binary(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x00\xff" * 100)


def _other_version(path: Path) -> None:
    path.write_text(json.dumps(result("ddp", 0).to_json() | {"schema_version": 9}))


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 2**20)


@pytest.mark.parametrize("made", [_binary, _other_version, _large, lambda path: None])
@pytest.mark.parametrize("more", [[], ["--format", "hf"]], ids=str)
def test_what_is_no_result_is_one_line(
    tmp_path: Path, made: Callable[[Path], Any], more: list[str], run: Run
) -> None:
    made(tmp_path / "best.json")
    (line,) = run("export", tmp_path / "best.json", *more, code=2).err.splitlines()
    assert str(tmp_path / "best.json") in line


# In scripts.


def test_a_script_reads_its_settings_without_torch(study: Path) -> None:
    code = (
        "import sys, autotune; best = autotune.load_best(sys.argv[1], anywhere=True);"
        "print(best.config.micro_batch, best.deepspeed()['train_batch_size'],"
        " 'torch' in sys.modules)"
    )
    assert python("-c", code, study).stdout.split() == ["2", "16", "False"]


def test_a_result_of_other_hardware_is_refused_unless_anywhere_is_meant(study: Path) -> None:
    with pytest.raises(OtherHardwareError, match="measured on a processor, and here is"):
        autotune.load_best(study)
    assert autotune.load_best(study, anywhere=True).config.depth == 2
    result("ddp", 0, kind="cuda").write(study / "best.json")
    with pytest.raises(UsageError, match="measured on cuda"):
        autotune.load_best(study)


def test_a_folder_of_studies_is_answered_with_the_last_one(study: Path) -> None:
    (study / "mine").mkdir()
    (study / "best.json").rename(study / "mine" / "best.json")
    with pytest.raises(UsageError, match=f"no best.json; .* e.g. {study / 'mine'}$"):
        autotune.load_best(study)
    with pytest.raises(UsageError, match="No such file") as error:
        autotune.load_best(study / "other.json")
    assert error.value.__suppress_context__


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_result_that_is_not_confirmed_warns(study: Path, *, confirmed: bool) -> None:
    why: Unconfirmed | None = None if confirmed else "its measurements differ"
    best = replace(Best.read(study / "best.json"), confirmed=confirmed, unconfirmed=why)
    best.write(study / "best.json")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        autotune.load_best(study, anywhere=True)
    assert [str(each.message).partition(": its finals")[2] for each in told] == (
        [] if confirmed else [" differ from each other, or from the search"]
    )


def test_deepspeeds_config_of_another_engine_is_refused(study: Path) -> None:
    result("ddp", 0).write(study / "best.json")
    with pytest.raises(UsageError, match="ddp was the engine"):
        autotune.load_best(study, anywhere=True).deepspeed()


def test_trials_have_types() -> None:
    sample = Path(__file__).parents[2] / "results" / "samples" / "cpu-2-cores"
    trials = autotune.load_trials(sample)
    named = ("micro_batch", "verdict", "tokens_per_s")
    assert [str(trials[name].dtype) for name in named] == ["Int64", "string", "float64"]
    assert len(trials.query("verdict == 'ok'")) > 3


def test_every_column_of_a_study_can_be_read(tmp_path: Path) -> None:
    mine = Candidate(
        depth=2, seq_len=64, micro_batch=1, own="lr=0.1", data_workers="own", prefetch="2"
    )
    found = record(mine, reason="why", witness="who")
    outcome = replace(found.outcome, log="group001-rank0.log")
    measured = replace(found.measured, kernels="flash")
    outcome = replace(outcome, measurement=measured, predicted_peak_bytes=1)
    Table(tmp_path / "trials.csv").append([replace(found, outcome=outcome)])
    (row,) = autotune.load_trials(tmp_path).to_dict("records")
    words = {name: row[name] for name in ("own", "data_workers", "prefetch", "log", "kernels")}
    assert words == {
        "own": "lr=0.1", "data_workers": "own", "prefetch": "2", "log": "group001-rank0.log",
        "kernels": "flash",
    }  # fmt: skip


def test_trials_of_no_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the folder of a study"):
        autotune.load_trials(tmp_path)
