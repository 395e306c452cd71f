"""The wheel, installed without the repository, makes a study, its report and its exports."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # setuptools writes a folder `build` beside what it builds
    source.mkdir()
    for name in ("autotune", "probes", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), str(source)], check=True
    )
    [found] = folder.glob("*.whl")
    return found


def test_it_holds_every_file_of_both_packages(wheel: Path) -> None:
    kept = {
        str(path.relative_to(ROOT))
        for package in ("autotune", "probes")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wheel.name.startswith("autotune_training-")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == kept


def test_installed_alone_it_tunes_reports_and_exports(wheel: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    subprocess.run([sys.executable, "-m", "venv", str(alone)], check=True)
    python = alone / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    # Its dependencies are those of this environment: on the path, where no *.pth is followed, so
    # that the repository itself cannot be imported.
    [site] = alone.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        return subprocess.run(
            [alone / "bin" / "autotune", *words], cwd=elsewhere, env=env, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    run("--budget", "40s", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2", "--out",
        "study")  # fmt: skip
    run("report", "study")
    run("export", "study/best.json", "--format", "hf", "--out", "made")
    assert (elsewhere / "study" / "report.html").stat().st_size > 10_000
    assert list((elsewhere / "made").iterdir()) != []
