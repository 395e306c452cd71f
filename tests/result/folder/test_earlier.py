"""What a new study finds in the folder that results go to."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.result.earlier import seen_in
from autotune.result.files import MANIFEST, OURS, create_folder
from autotune.result.folder import earlier as learning
from autotune.result.folder import manifest
from autotune.result.folder.earlier import learn
from autotune.result.folder.manifest import Manifest, manifest_of
from autotune.space.options import Options
from autotune.space.space import Space
from tests.support.records import space
from tests.support.studies import Run

FINGERPRINT = {"kind": "cpu", "devices": {"name": "two cores"}, "software": {"torch": "2.13.0"}}
BEFORE, NOW = space(depth=(2,)), space(depth=(4,))


def begun(folder: Path, among: Space, **changed: object) -> Manifest:
    return manifest_of(Options(), among, FINGERPRINT | changed, folder, [])


def study(folder: Path, among: Space = BEFORE, **changed: object) -> Run:
    """A whole one in `folder`, on devices and software that are as they are but for `changed`."""
    folder.mkdir(parents=True)
    begun(folder, among, **changed).write(folder)
    return Run(folder, among=among, trials=5)


def found(place: Path) -> list[str]:
    """Names of the studies in `place` that are learned from where that is asked for."""
    return named(learn(begun(place / "now", NOW), str(place), True))


def named(now: Manifest) -> list[str]:
    return [Path(each.folder).name for each in now.earlier]


def test_the_studies_beside_it_are_learned_from_the_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "old", "older"]):
        study(tmp_path / name)
        os.utime(tmp_path / name / MANIFEST, (1e9 - age, 1e9 - age))
    (tmp_path / "no study").mkdir()
    assert found(tmp_path) == ["new", "old", "older"]


def test_a_candidate_is_known_once_by_its_final_before_its_trial(tmp_path: Path) -> None:
    told = study(tmp_path / "before").told
    [known] = learn(begun(tmp_path / "now", NOW), str(tmp_path), True).earlier
    assert known.seen == seen_in(told)
    assert known.workload == BEFORE.workload
    measured = {r.candidate for r in told if r.outcome.measurement is not None}
    assert [each.candidate for each in known.seen] == list(dict.fromkeys(
        r.candidate for r in told if r.candidate in measured
    ))  # fmt: skip
    final = next(r for r in reversed(told) if r.purpose == "final")
    assert final.outcome.measurement is not None
    [its] = [each for each in known.seen if each.candidate == final.candidate]
    assert its.step == final.outcome.measurement.step


def test_a_script_and_another_model_say_nothing_of_each_other(tmp_path: Path) -> None:
    of_script = replace(BEFORE, workload=replace(BEFORE.workload, model="script:train.py"))
    study(tmp_path / "script", of_script)
    study(tmp_path / "model")
    assert found(tmp_path) == ["model"]
    assert named(learn(begun(tmp_path / "now", of_script), str(tmp_path), True)) == ["script"]


@pytest.mark.parametrize(
    "other",
    [{"devices": {"name": "three cores"}}, {"software": {"torch": "2.11.0"}}, {"kind": "cuda"}],
)
def test_others_devices_or_software_do_not_say(tmp_path: Path, other: dict[str, object]) -> None:
    study(tmp_path / "other", BEFORE, **other)
    assert found(tmp_path) == []


@pytest.mark.parametrize("file", [MANIFEST, "optuna.log"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\n\n", b'{"schema_version": 1}\n'])
def test_a_damaged_study_is_done_without(tmp_path: Path, file: str, content: bytes | None) -> None:
    study(tmp_path / "whole")
    study(tmp_path / "damaged")
    path = tmp_path / "damaged" / file
    path.unlink() if content is None else path.write_bytes(content)
    assert found(tmp_path) == ["whole"]


def test_the_folder_of_another_study_is_left_as_it_is(tmp_path: Path) -> None:
    study(tmp_path / "before")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found(tmp_path) == ["before"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_study_by_its_name_or_a_folder_of_studies(tmp_path: Path) -> None:
    study(tmp_path / "a" / "one")
    assert found(tmp_path) == []
    assert found(tmp_path / "a") == found(tmp_path / "a" / "one") == ["one"]


def test_studies_learn_from_results_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(tmp_path / "results" / "mine")
    study(tmp_path / "strangers")
    monkeypatch.chdir(tmp_path)

    def unasked(folder: Path, asked: str | None = None, by_default: bool = True) -> list[str]:
        return named(learn(begun(folder, NOW), asked, by_default))

    assert unasked(Path("results/now")) == unasked(tmp_path / "results" / "now") == ["mine"]
    assert unasked(Path("results/now"), learning.NOTHING) == []
    assert unasked(Path("results/now"), by_default=False) == []
    assert unasked(Path("now")) == unasked(tmp_path / "now") == []
    create_folder(tmp_path / "made" / "one")
    study(tmp_path / "made" / "two")
    assert unasked(tmp_path / "made" / "one") == ["two"]
    (tmp_path / "strangers" / OURS).symlink_to("/proc/1/status" if os.getuid() else "/nowhere")
    assert unasked(Path("now")) == unasked(tmp_path / "strangers" / "now") == []
    monkeypatch.chdir("strangers")
    assert unasked(tmp_path / "results" / "now") == unasked(Path("now")) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="there is no such folder; name one"):
        found(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is no folder"):
        found(tmp_path / "file")


def test_learning_keeps_proposals_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        study(tmp_path / name)
    monkeypatch.setattr(learning, "MOST_SEEN", 7)
    known = learn(begun(tmp_path / "now", NOW), str(tmp_path), True).earlier
    assert sum(len(each.seen) for each in known) == 7
    monkeypatch.setattr(learning, "MOST_STUDIES", 1)
    assert len(found(tmp_path)) == 1


def test_a_manifest_keeps_what_is_learned(tmp_path: Path) -> None:
    study(tmp_path / "before")
    now = learn(begun(tmp_path, NOW), str(tmp_path / "before"), True)
    assert now.earlier
    now.write(tmp_path)
    shutil.rmtree(tmp_path / "before")
    assert manifest.read(tmp_path) == now


def gpus(name: str, **more: object) -> dict[str, Any]:
    return {"kind": "cuda", "devices": {"devices": [{"name": name, "uuid": f"{more}"}], **more}}


@pytest.mark.parametrize(
    ("card", "software", "learned"),
    [("H100", "2.13.0", True), ("H200", "2.13.0", False), ("H100", "2.12.0", False)],
)
def test_emulated_gpus_tell_of_the_memory_of_such_cards_alone(
    tmp_path: Path, card: str, software: str, learned: bool
) -> None:
    study(tmp_path / "weighed", **gpus("H100", emulated=True))
    study(tmp_path / "measured", **gpus("H100"))
    mine = gpus(card) | {"software": {"torch": software}}
    now = learn(begun(tmp_path / "now", NOW, **mine), str(tmp_path), True)
    timed = {Path(each.folder).name: each.timed for each in now.earlier}
    assert timed == ({"weighed": False, "measured": True} if learned else {})
    parsed = manifest.parsed(json.loads(now.text()))
    assert parsed.earlier == now.earlier
