"""`--join`: what it takes and refuses, on recorded measurements."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.measure.testbed import open_testbed
from autotune.result.files import MANIFEST
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import past_in, records_in
from autotune.result.folder.past import Ending, StudyEnd
from autotune.result.folder.storage import place_of
from autotune.space.options import Options
from tests.support import recorded

Tune = Callable[..., Any]
URL = "sqlite:///studies.db"
NEW = ("--device", "replay:grid.csv", "--storage", URL, "--budget", "1h", "--trials", "4")


@pytest.fixture
def tune(run: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Runs a command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    recorded.write(Path("grid.csv"))
    return run


def place(folder: str = "study") -> str:
    return place_of(URL, manifest.read(Path(folder)).study_name)


def test_a_study_says_how_it_is_joined(tune: Tune) -> None:
    said = "".join(tune(*NEW, "--out", "study").out.split())  # it may be longer than a line
    assert f"--joinsqlite:///{Path.cwd()}/studies.db/study-" in said


def test_what_joins_has_the_options_of_the_study_and_a_folder_of_its_own(tune: Tune) -> None:
    tune(*NEW, "--out", "study", "--finals", "1", "--seed", "3")
    assert "joined after" in tune("--join", place(), "--out", "mine").out
    first, mine = (json.loads(Path(each, MANIFEST).read_text()) for each in ("study", "mine"))
    for name in ("out", "storage"):
        assert first["options"].pop(name) != "mine"
        mine["options"].pop(name)
    assert mine["options"] == first["options"]
    assert (mine["study_name"], mine["folder"]) == (first["study_name"], "mine")
    first, mine = (json.loads(Path(each, "best.json").read_text()) for each in ("study", "mine"))
    assert mine | {"provenance": None} == first | {"provenance": None}
    assert (
        records_in(Folder(Path("mine")))[0].candidate
        == records_in(Folder(Path("study")))[0].candidate
    )


@pytest.mark.slow
def test_logs_of_others_are_named_with_their_process(tune: Tune) -> None:
    tune(*NEW, "--out", "study")
    tune("--join", place(), "--out", "mine")
    logs = {record.outcome.log for record in records_in(Folder(Path("mine")))}
    assert all(not log or "/" in log for log in logs)


@pytest.mark.slow
def test_a_study_of_several_folders_is_learned_from_once(tune: Tune) -> None:
    tune(*NEW, "--out", "all/study")
    tune("--join", place("all/study"), "--out", "all/mine")
    tune(*NEW[:2], "--out", "next", "--learn-from", "all")
    [known] = json.loads(Path("next", MANIFEST).read_text())["earlier"]
    assert known["seen"]


@pytest.mark.slow
def test_what_joined_is_resumed_in_its_folder(tune: Tune) -> None:
    tune(*NEW, "--out", "study")
    tune("--join", place(), "--out", "mine")
    before = records_in(Folder(Path("study")))
    assert "Written: mine/best.json" in tune("--resume", "mine").out
    assert records_in(Folder(Path("study"))) == before


def test_a_gpu_that_is_passed_over_is_said(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.device.remark", lambda device: "a GPU is passed over")
    asked = [(*NEW, "--dry-run"), (*NEW, "--out", "study"), ("--join", place, "--out", "mine")]
    for words in asked:
        _, stderr = tune(*(each if isinstance(each, str) else each() for each in words))
        assert stderr.count("autotune: a GPU is passed over") == 1


def test_other_devices_are_refused_unless_they_are_accepted(tune: Tune) -> None:
    tune(*NEW, "--out", "study")
    devices = recorded.header()["fingerprint"]["devices"] | {"name": "another"}
    other = recorded.header()["fingerprint"] | {"devices": devices}
    recorded.write(Path("grid.csv"), fingerprint=other)
    _, stderr = tune("--join", place(), "--out", "mine", code=2)
    assert "fingerprint.devices.name was a processor and is another" in stderr
    assert stderr.startswith(f"autotune: --join {place()}: ")
    assert not Path("mine").exists()
    tune("--join", place(), "--out", "mine", "--accept-changed", "name")


def gpus(*uuids: str) -> dict[str, Any]:
    """What a machine of these GPUs says of itself."""
    devices = [{"name": "a GPU", "capacity_bytes": 2**36, "uuid": uuid} for uuid in uuids]
    known: dict[str, Any] = recorded.header()["fingerprint"]
    return known | {"devices": known["devices"] | {"devices": devices}}


@pytest.mark.slow
def test_each_process_has_devices_of_its_own(tune: Tune) -> None:
    recorded.write(Path("grid.csv"), fingerprint=gpus("GPU-0", "GPU-1"))
    tune(*NEW, "--out", "study")
    recorded.write(Path("grid.csv"), fingerprint=gpus("GPU-2"))
    assert tune("--join", place(), "--out", "mine").err == ""
    near = gpus("GPU-4", "GPU-5")
    near["devices"]["devices"][1]["capacity_bytes"] += 2**24
    recorded.write(Path("grid.csv"), fingerprint=near)
    tune("--join", place(), "--out", "near")
    _, stderr = tune("--resume", "study", code=2)  # there they are the same ones, or it is said
    assert "fingerprint.devices.devices.0.uuid was GPU-0" in stderr
    small = gpus("GPU-3")
    small["devices"]["devices"][0]["capacity_bytes"] = 2**35
    recorded.write(Path("grid.csv"), fingerprint=small)
    _, stderr = tune("--join", place(), "--out", "other", code=2)
    assert "capacity_bytes was 68719476736 and is 34359738368" in stderr


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_groups_that_share_a_host_join_none_that_have_one_alone(tune: Tune) -> None:
    one = ("--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1")
    options = Options.from_texts({"device": "cpu", "depth": "1", "seq_len": "32"})
    machine = open_testbed(options)
    alone = machine.space(options)
    made = manifest.manifest_of(
        options.but(storage=URL), alone, machine.fingerprint(alone), Path("study"), one
    )
    study = optuna.create_study(storage=URL, study_name=made.study_name)
    study.set_user_attr("manifest", asdict(made))
    asked = ("--join", place_of(URL, made.study_name), "--parallel", "2")
    assert "fingerprint.host_bytes was" in tune(*asked, code=2).err


@pytest.mark.slow
def test_each_process_remembers_how_it_ended_itself(tune: Tune) -> None:
    tune(*NEW, "--out", "study", "--finals", "1")
    journal = RDBStorage(URL)
    name = manifest.read(Path("study")).study_name
    study = optuna.load_study(storage=journal, study_name=name)
    stopped = study.user_attrs["ended"] | {"code": Ending.STOPPED.value}
    study.set_user_attr("ended", stopped)
    tune("--join", place(), "--out", "mine")
    assert past_in(Folder(Path("mine"))).ended == StudyEnd(Ending.FOUND)
    ended = past_in(Folder(Path("study"))).ended
    assert ended is not None
    assert ended.code == Ending.STOPPED
    assert "resumed after" in tune("--resume", "study").out


@pytest.mark.slow
def test_a_file_of_options_is_not_for_a_study_that_has_them(tune: Tune) -> None:
    tune(*NEW, "--out", "study")
    Path("pyproject.toml").write_text("[tool.autotune]\ndepth = [2]\nout = 'elsewhere'\n")
    assert tune("--join", place(), "--out", "mine").err == ""


REFUSED = {
    ("--join", "sqlite:///studies.db/none"): "no study 'none' in sqlite:///",
    ("--join", "sqlite:///new.db/none"): "it has none",
    ("--join", "study"): "--join: write URL/NAME, as the study prints it; the URL before the last",
    ("--join", "postgresql://host/x"): "postgresql://host: has no database name",
    ("--join", "sqlite:///studies.db/old"): "it was written by another version",
    ("--join", "sqlite:///studies.db/other"): "it was written by another version",
    ("--join", f"{URL}/x", "--resume", "study"): "--join: a resumed study keeps its options",
    ("--join", f"{URL}/x", "--seed", "4"): "--seed: not with --join; leave",
    ("--join", f"{URL}/x", "--dry-run"): "--dry-run: not with --join",
    ("--join", f"{URL}/x", "--config", "grid.csv"): "--config: not with --join",
    ("--join", f"{URL}/x", "--out", "study"): "--out study: has a study",
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, whose database also has one that is older and one that is newer."""
    folder = tmp_path_factory.mktemp("begun")
    with chdir(folder):
        recorded.write(Path("grid.csv"))
        assert main([*NEW, "--out", "study"]) == ExitCode.FOUND
        optuna.create_study(storage=URL, study_name="old")
        optuna.create_study(storage=URL, study_name="other").set_user_attr(
            "manifest", {"schema_version": 9}
        )
    return folder


@pytest.mark.parametrize("asked", REFUSED)
def test_what_cannot_be_joined_is_said_in_one_line(
    begun: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    monkeypatch.chdir(begun)
    _, stderr = tune(*asked, code=2)
    assert REFUSED[asked] in stderr
    assert stderr.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["grid.csv", "studies.db", "study"]
