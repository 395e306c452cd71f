"""Folders that cannot be written: what was told is kept, the user is told, and it can go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import recorded
from tests.support.choice import campaign
from tests.support.hostile import HostileStudy, RealStudy, limited

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]


@pytest.fixture
def replay(tmp_path: Path) -> list[str]:
    grid = recorded.write(tmp_path / "grid.csv")
    return ["--device", f"replay:{grid}", "--sampler", "grid", "--budget", "10h"]


@pytest.fixture
def whole(make: Make, replay: list[str]) -> HostileStudy:
    """The same study where nothing went wrong."""
    study = make(RealStudy, *replay)
    assert study.begin().wait() == 0
    return study


# manifest.json has 2 KB, trials.csv 5, best.json 10, and optuna.log 80.
SIZES = (0, 1000, 4000, 9000, 50_000)
MORE_SIZES = (400, 3000, 6000, 20_000)


@pytest.mark.parametrize("size", [*SIZES, *campaign(*MORE_SIZES)])
def test_a_full_disk_ends_it_in_one_line_and_it_can_go_on(
    make: Make, replay: list[str], whole: HostileStudy, size: int
) -> None:
    study = make(RealStudy, *replay)
    process = study.begin(prepare=limited(size))
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert stderr.count("\n") == 1
    assert "File too large" in stderr
    assert f"--resume {study.out}" in stderr
    told = study.told()
    assert study.resume().wait() == 0
    assert told.items() <= study.told().items()
    assert study.told_twice() == []
    assert study.trials() == whole.trials()
    assert study.best() is not None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a file system; the limits on file sizes are tested above")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_file_systems(make: Make, replay: list[str], whole: HostileStudy, disk: Path) -> None:
    study = make(RealStudy, *replay)
    study.out = disk / "study"
    process = study.begin()
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "No space left on device" in stderr
    told = study.told()
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    assert study.resume().wait() == 0
    assert told.items() <= study.told().items()
    assert study.trials() == whole.trials()


def test_output_on_a_full_disk_does_not_end_the_study(make: Make, replay: list[str]) -> None:
    study = make(RealStudy, *replay)
    command = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"]
    arguments = [sys.executable, "-m", "autotune", "--out", str(study.out), *replay]
    environment = os.environ | study.environment
    done = subprocess.run([*command, *arguments], cwd=study.folder, env=environment, check=False)
    assert done.returncode == 0
    assert study.best() is not None
