"""Where torch keeps what it compiles, such as DeepSpeed's ops."""

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
"""No op takes so long to build: a lock that is older is that of a build that was killed."""


class Compiled:
    """What processes of a study compile with inductor and Triton: else each would do it again,
    since torch keeps that among temporary files."""

    def __init__(self, logs: Path) -> None:
        self._folder = (logs / COMPILED).absolute()

    def variables(self) -> dict[str, str]:
        """Those that name it, where the user has not set them."""
        return {
            name: str(self._folder / name.lower()) for name in CACHES if name not in os.environ
        }

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What processes with the variables `environ` use."""
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    return Path(environ.get(VARIABLE) or cache / "torch_extensions")


def environment(instead: Path) -> dict[str, str]:
    """Has torch use a folder in `instead` where it cannot write to its own."""
    usual = folder()
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual):
            return {}
    except OSError:
        return {VARIABLE: str(instead.absolute() / "torch_extensions")}


def remove_locks(environ: Mapping[str, str], since: float, until: float = math.inf) -> None:
    """Remove what a build that was killed left between these times, in seconds of the epoch: every
    later process that needs that op would wait for it, for ever (torch/utils/file_baton.py).

    Who builds has the file open. One of another user, whose processes do not show theirs, stays.
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
    """Leave word of who builds, for `remove_stale_locks`."""
    with suppress(OSError):
        folder(environ).mkdir(parents=True, exist_ok=True)
        (folder(environ) / BUILDER).write_text(f"{socket.gethostname()} {pid} {_began_s(pid)}")


def remove_stale_locks(environ: Mapping[str, str]) -> None:
    """Remove those that no build has any more: of this host's last builder, where that is gone,
    and all that are old."""
    note = folder(environ) / BUILDER
    with suppress(OSError, ValueError):
        host, pid, began_s = note.read_text().split()
        if host == socket.gethostname() and _began_s(int(pid)) != float(began_s):
            remove_locks(environ, note.stat().st_mtime - 1.0)
    remove_locks(environ, 0.0, time.time() - STALE_S)


def _began_s(pid: int) -> float:
    """When that process began; 0 where it is gone."""
    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return 0.0
