"""The folders of what torch compiles, such as DeepSpeed's ops."""

from __future__ import annotations

import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "TORCH_EXTENSIONS_DIR"
COMPILED = "compiled.tmp"
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
BUILDER = "autotune-builder"
STALE_S = 600.0
"""No op takes so long to build: the build of an older lock was killed."""


class Compiled:
    """A common folder for inductor and Triton, so that each process compiles less."""

    def __init__(self, logs: Path) -> None:
        self._folder = (logs / COMPILED).absolute()

    def variables(self) -> dict[str, str]:
        """Variables that name it, unless the user set them."""
        return {
            name: str(self._folder / name.lower()) for name in CACHES if name not in os.environ
        }

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that processes with the variables `environ` use."""
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    return Path(environ.get(VARIABLE) or cache / "torch_extensions")


def environment(instead: Path) -> dict[str, str]:
    """Variables for a folder in `instead`, if torch cannot write to its own."""
    usual = folder()
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual):
            return {}
    except OSError:
        return {VARIABLE: str(instead.absolute() / "torch_extensions")}


def remove_locks(environ: Mapping[str, str], since: float, until: float = math.inf) -> None:
    """Remove locks of killed builds from between these times, in seconds of the epoch. Later
    processes that need that op would wait for ever (torch/utils/file_baton.py).

    A running build has the file open. Locks of other users stay: their open files are not shown.
    """
    left = [lock for lock in folder(environ).glob("**/lock") if _may_be_left(lock, since, until)]
    opened = _opened() if left else set()
    for lock in left:
        with suppress(OSError):
            if _identity(lock.stat()) not in opened:
                lock.unlink()


def _may_be_left(lock: Path, since: float, until: float) -> bool:
    with suppress(OSError):
        seen = lock.stat()
        return since <= seen.st_mtime <= until and seen.st_uid == os.getuid()
    return False


def _opened() -> set[tuple[int, int]]:
    """Files named lock that this user's processes have open."""
    found = set()
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if opened.readlink().name == "lock":
                found.add(_identity(opened.stat()))
    return found


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


def note_builder(environ: Mapping[str, str], pid: int) -> None:
    """Write down the process that builds, for `remove_stale_locks`."""
    with suppress(OSError):
        folder(environ).mkdir(parents=True, exist_ok=True)
        (folder(environ) / BUILDER).write_text(f"{socket.gethostname()} {pid} {_began_s(pid)}")


def remove_stale_locks(environ: Mapping[str, str]) -> None:
    """Remove old locks, and those of this host's last builder, if it ended."""
    note = folder(environ) / BUILDER
    with suppress(OSError, ValueError):
        host, pid, began_s = note.read_text().split()
        if host == socket.gethostname() and _began_s(int(pid)) != float(began_s):
            remove_locks(environ, note.stat().st_mtime - 1.0)
    remove_locks(environ, 0.0, time.time() - STALE_S)


def _began_s(pid: int) -> float:
    """When that process began; 0 if it ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return 0.0
