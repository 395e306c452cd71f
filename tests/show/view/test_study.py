"""What is read of a study's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from autotune.errors import UsageError
from autotune.result.files import hold
from autotune.show.view.study import read
from autotune.space.outcome import Verdict
from tests.support.shown import change_json, change_rows, failed


def test_a_trial_has_its_objective_its_interval_and_its_words(path: Path) -> None:
    trials = read(path).trials
    assert pd.api.types.is_numeric_dtype(trials["value"])
    assert pd.api.types.is_numeric_dtype(trials["micro_batch"])
    assert set(trials["compile"]) == {"off"}  # an axis that the table has no column of
    first = trials.iloc[0]
    assert first["value"] == first["model_flops_per_s"]
    assert first["value_low"] < first["value"] < first["value_high"]
    assert (first["candidate"], first["build"], first["cell"]) == (
        "depth 4, seq 128, micro 11", "all", "depth 4, seq 128",
    )  # fmt: skip
    assert first["ended_s"] == first["started_s"] + first["probe_s"]


def test_tokens_per_joule_is_shown_where_that_is_the_objective(path: Path) -> None:
    change_rows(path, lambda rows: [row | {"joules_per_token": "0.5"} for row in rows])
    options = read(path).manifest.options | {"objective": "tokens_per_joule"}
    change_json(path / "manifest.json", options=options)
    study = read(path)
    assert (study.unit, set(study.measured["value"])) == ("tokens/J", {2.0})


def test_an_axis_that_came_later_is_plain_in_an_earlier_study(path: Path) -> None:
    path = path / "trials.csv"
    pd.read_csv(path).drop(columns="loss", errors="ignore").to_csv(path, index=False)
    assert set(read(path.parent).trials["loss"]) == {"whole"}


def test_a_row_that_is_on_its_way_is_not_read(path: Path) -> None:
    whole = len(read(path).trials)
    with (path / "trials.csv").open("a") as file:
        file.write("4,128,11,0,none,no")
    assert len(read(path).trials) == whole


def test_a_study_that_has_just_begun_has_no_trials(path: Path) -> None:
    for name in ("trials.csv", "best.json"):
        (path / name).unlink()
    study = read(path)
    assert (len(study.trials), study.best, study.elapsed_s) == (0, None, 0.0)


def test_only_trials_of_the_search_are_counted_by_verdict(path: Path) -> None:
    before = read(path).counts
    change_rows(path, lambda rows: [failed(rows[0], "oom"), *rows[1:]])
    after = read(path).counts
    assert after[Verdict.OOM] == 1
    assert sum(after.values()) == sum(before.values()) == 10


def test_a_study_runs_while_a_process_holds_its_folder(path: Path) -> None:
    with hold(path):
        assert read(path).running
    assert not read(path).running


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / "manifest.json").unlink(), "not a study folder"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is not of version"),
        (lambda path: change_json(path / "manifest.json", schema_version=9), "schema_version"),
        (lambda path: change_json(path / "manifest.json", options={}), "by another version"),
        (lambda path: (path / "best.json").write_text("[]"), "not a best.json"),
        (lambda path: (path / "trials.csv").write_text("a,b\n1,2\n"), "not a trials.csv"),
        (lambda path: (path / "trials.csv").write_bytes(b"\xff\xfe\n"), "it is no text"),
        (
            lambda path: change_rows(path, lambda rows: [*rows, rows[0] | {"step_s_low": "fast"}]),
            "not a trials.csv: .*'fast'",
        ),
        (lambda path: (path / "optuna.log").write_text('{"op_code": 99}\n'), "journal is damaged"),
        (lambda path: (path / "optuna.log").write_text("not JSON\n{}\n"), "journal is damaged"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(path: Path, damage: object, why: str) -> None:
    damage(path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=why) as error:
        read(path)
    assert "--resume" not in str(error.value)


def test_nothing_is_written_in_a_folder_that_is_read(path: Path) -> None:
    before = sorted(p.stat().st_mtime_ns for p in [path, *path.rglob("*")])
    read(path)
    assert sorted(p.stat().st_mtime_ns for p in [path, *path.rglob("*")]) == before


def test_values_of_a_script_that_read_like_nothing_are_values(path: Path) -> None:
    change_rows(path, lambda rows: [row | {"own": "None"} for row in rows[:1]])
    assert set(read(path).trials["own"]) == {"None"}


def test_the_axes_of_a_long_table_are_looked_for_once(path: Path) -> None:
    study = read(path)
    assert study.axes is study.axes


def test_a_study_of_a_script_is_called_by_it(path: Path) -> None:
    study = read(path)
    of_script = replace(study, workload=replace(study.workload, model="script:train.py"))
    assert (study.model, of_script.model) == ("gpt", "script:train.py")


def test_devices_of_several_nodes_are_said_to_be(path: Path) -> None:
    study = read(path)
    two = replace(study, workload=replace(study.workload, world_size=2, nodes=2))
    assert two.devices == f"{study.devices} on 2 nodes"
