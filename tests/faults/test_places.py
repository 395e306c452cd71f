"""Machines that are set up badly: real studies run there all the same."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hostile import HostileStudy, RealStudy

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]

TINY = [
    "--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1",
    "--gpt", "vocab_size=256", "--checkpointing", "none", "--trials", "1", "--finals", "1",
    "--budget", "100s",
]  # fmt: skip
ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
JUMPING = """
# What a clock that is set while a study runs looks like: a day to and fro.
import itertools, time
now, days = time.time, itertools.cycle([0, 86400, -86400])
time.time = lambda: now() + next(days)
"""


def succeeds(study: HostileStudy) -> tuple[str, str]:
    """Runs `study` through its search and its finals to a result; stdout and stderr."""
    process = study.begin()
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert study.best() is not None
    assert {purpose for purpose, *_ in study.trials()} == {"search", "final"}
    return stdout, stderr


def test_it_runs_without_utf8_home_or_temporary_files(make: Make, tmp_path: Path) -> None:
    study = make(
        RealStudy, *TINY, folder=tmp_path / "grüße von 'hier' $HOME",
        **ASCII, HOME="/proc/nowhere", TMPDIR="/proc/nowhere", XDG_CACHE_HOME="/proc/nowhere",
    )  # fmt: skip
    stdout, stderr = succeeds(study)
    assert stderr == ""
    assert stdout.isascii()
    again = study.resume()
    assert re.search(r"Best: (\(not confirmed\) )?depth 1", again.communicate()[0])
    assert again.returncode == 0


def test_a_name_that_no_encoding_has(make: Make, tmp_path: Path) -> None:
    study = make(RealStudy, *TINY, folder=tmp_path / os.fsdecode(b"\xff\xfe"))
    succeeds(study)


def test_where_only_the_study_folder_can_be_written(make: Make, tmp_path: Path) -> None:
    study = make(RealStudy, *TINY)
    steps = [
        step
        for path in ("/tmp", "/var/tmp", "/root", "/home")
        for step in (f"mount --bind {path} {path}", f"mount -o remount,ro,bind {path}")
    ]
    steps += [f"mount --bind {study.folder} {study.folder}"]
    steps += [f"mount -o remount,rw,bind {study.folder}", 'exec "$@"']
    script = " && ".join(steps)
    inside = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if os.getuid() != 0 or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("may not mount; folders that cannot be written are tested above")
    environment = os.environ | study.environment
    del environment["TMPDIR"]
    command = [sys.executable, "-m", "autotune", "--out", str(study.out), *TINY]
    done = subprocess.run(
        [*inside, *command], cwd=study.folder, env=environment | {"HOME": "/root"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert study.best() is not None


def test_a_clock_that_jumps_changes_nothing(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(JUMPING)
    study = make(RealStudy, *TINY)
    study.environment["PYTHONPATH"] += os.pathsep + str(folder)
    succeeds(study)
    best = study.best()
    assert best is not None
    assert 0 < best["provenance"]["elapsed_s"] < 600


def test_nobody_else_may_write_in_the_folder(make: Make) -> None:
    study = make(RealStudy, *TINY)
    process = study.begin(prepare=lambda: os.umask(0) and None)
    assert process.wait() == 0
    everything = [study.out, *study.out.rglob("*")]
    assert len(everything) > 6
    for path in everything:
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path
