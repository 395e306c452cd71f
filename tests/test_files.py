"""Files that are written whole or not at all, and folders that one process holds."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.result.files import LOCK, hold, is_held, write_whole

HOLDER = """
import sys, time
from pathlib import Path
from autotune.result.files import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_utf8_has_no_bytes_for_is_written_all_the_same(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "a path with \udcff in it")
    assert (tmp_path / "file").read_text() == "a path with \\udcff in it"


def test_a_folder_is_held_by_one_process_and_free_once_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(UsageError, match=f"process {holder.pid} on {os.uname().nodename} "):
            hold(tmp_path).__enter__()
        holder.kill()
    assert (tmp_path / LOCK).exists()
    with hold(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()} ")
    assert not (tmp_path / LOCK).exists()


def test_a_folder_is_held_by_one_at_a_time_within_a_process_too(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(UsageError):
        hold(tmp_path).__enter__()
    with hold(tmp_path):
        pass


def test_who_only_looks_whether_a_folder_is_held_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = FileIO(tmp_path / LOCK, "w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda seconds: looking.close())
    with hold(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_file_systems_may_lack_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with hold(tmp_path):
        assert (tmp_path / LOCK).exists()
