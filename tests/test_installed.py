"""What installs a package that is missing."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from autotune import installed
from tests.support.programs import ROOT, python


def test_every_extra_of_users_is_known_by_what_it_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].keys() - {"bench", "dev", "docs"}
    assert set(installed.EXTRAS.values()) == extras
    assert project["name"] == installed.DISTRIBUTION


@pytest.mark.parametrize(
    ("package", "checkout", "line"),
    [
        ("ray", True, '{python} -m pip install -e "{folder}[ray]"'),
        ("optuna", True, "{folder}/scripts/tune, which takes the same arguments"),
        ("triton", True, "{python} -m pip install triton"),
        ("ray", False, '{python} -m pip install "autotune-training[ray]"'),
        ("optuna", False, '{python} -m pip install "autotune-training"'),
    ],
)
def test_the_line_is_that_of_a_checkout_or_of_the_installed_distribution(
    package: str, checkout: bool, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installed, "CHECKOUT", tmp_path)
    (tmp_path / "scripts").mkdir()
    if checkout:
        (tmp_path / "scripts" / "tune").touch()
    wanted = line.format(python=sys.executable, folder=tmp_path)
    assert installed.missing(package) == f"{package} is not installed; run {wanted}"


def test_a_folder_of_that_name_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "absent").mkdir()  # as trackers leave folders of their own names
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed.missing("absent").startswith("absent is not installed; run ")


def test_a_python_without_the_dependencies_is_told_of_the_script_that_has_them() -> None:
    ran = python("-S", "-m", "autotune", "--dry-run", code=2)
    assert ran.stdout == ""
    assert ran.stderr == (
        f"autotune: cyclopts is not installed; run {ROOT}/scripts/tune, which takes the same"
        " arguments\n"
    )
