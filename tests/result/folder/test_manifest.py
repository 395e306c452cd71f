"""manifest.json: read back, compared, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.result.files import MANIFEST
from autotune.result.folder.manifest import Manifest, check, manifest_of, read
from autotune.space.options import Options
from autotune.space.workload import GlobalBatch
from tests.support.records import space

Edit = Callable[[dict[str, Any]], None]
FINGERPRINT = {"kind": "cpu", "software": {"torch": "2.13.0"}}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return manifest_of(Options(), space(), FINGERPRINT, tmp_path, ["--budget", "30m"])


def changed(manifest: Manifest, edit: Edit) -> Manifest:
    body = json.loads(json.dumps(asdict(manifest)))
    edit(body)
    return Manifest(**body)


def test_what_is_written_is_read_back(manifest: Manifest, tmp_path: Path) -> None:
    manifest.write(tmp_path)
    assert read(tmp_path) == manifest


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options.of(budget_s=90.5, depth=(2, 4, 7), global_batch=GlobalBatch(65536, "tokens")),
        Options.of(global_batch=GlobalBatch(96, "samples"), device="replay:a file, -- or so.csv"),
    ],
)  # fmt: skip
def test_a_manifest_has_the_options_it_was_made_of(options: Options, tmp_path: Path) -> None:
    made = manifest_of(options, space(), FINGERPRINT, tmp_path, [])
    made.write(tmp_path)
    assert read(tmp_path).asked() == options


def test_a_configuration_file_adds_nothing_to_recorded_options(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.autotune]\nseed = 5\n")
    monkeypatch.chdir(tmp_path)
    assert manifest.asked().search.seed == 0


@pytest.mark.parametrize(("name", "value"), [("depth", "soon"), ("depht", 2), ("seed", -1)])
def test_impossible_options_are_refused(manifest: Manifest, name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        replace(manifest, options={name: value}).asked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", [[2], 4]),
        ("global_batch", {"amount": 256, "unit": "bytes"}),
        ("seed", 1.5),
        ("ceiling", True),
        ("engine", ["ddp"] * 2),
    ],
)
def test_impossible_values_are_refused(manifest: Manifest, name: str, value: object) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"its options: {flag}"):
        replace(manifest, options={name: value}).asked()


def test_a_sampler_needs_its_package(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="its options: --sampler gp: scipy is not"):
        replace(manifest, options={"sampler": "gp"}).asked()


def test_what_did_not_change_passes(manifest: Manifest) -> None:
    assert check(manifest, manifest, frozenset()) == {}


@pytest.mark.parametrize(
    ("edit", "path", "name"),
    [
        (lambda m: m["fingerprint"]["software"].update(torch="1.0"), "software.torch", "torch"),
        (lambda m: m["fingerprint"].update(kind="cuda"), "fingerprint.kind", "kind"),
        (lambda m: m["fingerprint"].update(driver="1"), "fingerprint.driver", "driver"),
        (lambda m: m["space"]["limits"].update(capacity_bytes=1), "limits.capacity_bytes",
         "capacity_bytes"),
    ],
)  # fmt: skip
def test_a_change_is_refused_by_its_name_and_passes_if_that_is_accepted(
    manifest: Manifest, edit: Edit, path: str, name: str
) -> None:
    now = changed(manifest, edit)
    with pytest.raises(UsageError, match=rf"{path} was .* and is .*--accept-changed {name}$"):
        check(manifest, now, frozenset())
    assert [key.endswith(path) for key in check(manifest, now, frozenset({name}))] == [True]


def test_all_that_changed_is_named_for_acceptance(manifest: Manifest) -> None:
    now = changed(manifest, lambda m: m["fingerprint"].update(a=1, b=2))
    with pytest.raises(UsageError, match=r"and 1 more differ.*--accept-changed a,b$"):
        check(manifest, now, frozenset())
    with pytest.raises(UsageError, match=r"fingerprint\.b was .*--accept-changed a,b$"):
        check(manifest, now, frozenset({"a"}))
    assert len(check(manifest, now, frozenset({"fingerprint"}))) == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["space"]["axes"].update(depth=[2]),
        lambda m: m["space"]["workload"].update(dtype="bf16"),
    ],
)
def test_another_space_is_never_accepted(manifest: Manifest, edit: Edit) -> None:
    with pytest.raises(UsageError, match="start a new study"):
        check(manifest, changed(manifest, edit), frozenset({"space", "depth", "dtype"}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "not a study folder"),
        ("", "not of version 1"),
        ('{"schema_version": 1', "not of version 1"),
        ('{"schema_version": 2}', "schema_version"),
        ('{"schema_version": 1}', "missing required field"),
        ("[" * 10_000, "not of version 1"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(UsageError, match=why):
        read(tmp_path)
