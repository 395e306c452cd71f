"""A study's folder: one process at a time holds it, and writes files whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from pathlib import Path

from autotune.errors import UsageError

LOCK = "lock"
MANIFEST = "manifest.json"
RESULTS = Path("results")
"""The default folder of studies."""
OURS = ".autotune"
"""Marks a folder that autotune made for studies: its studies are the user's own."""
LOOKS, LOOK_S = 5, 0.01
"""A folder is in use if it is held at so many looks, so many seconds apart."""
_BEFORE_MANIFEST = {LOCK, f"{MANIFEST}.tmp"}
"""Files of a study that was killed before it began."""


def write_whole(path: Path, text: str) -> None:
    """Replace `path` by a file with `text`: a reader sees the old one or the new one.

    It is on the disk when this returns. Raises OSError; `path` is then as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep every other study out of `folder`. The kernel frees the lock of a dead process.

    The lock's file says which process holds it. Raises UsageError if a process holds it already.
    """
    path = folder / LOCK
    held = _locked(path)
    if held is None:
        yield
        return
    with held as file:
        with suppress(OSError):  # a full disk: the lock holds all the same
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def is_held(folder: Path) -> bool:
    """Whether a process on this host runs a study in `folder`."""
    try:
        with FileIO(folder / LOCK, "r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has no locks
        return False
    return False


def _locked(path: Path) -> FileIO | None:
    """The locked file; None if the folder cannot be written at all."""
    looks = 0
    while True:
        try:
            file = FileIO(path, "a+")
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return None
            raise UsageError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if looks < LOOKS:  # another process may only look (`is_held`)
                looks += 1
                file.close()
                time.sleep(LOOK_S)
                continue
            file.seek(0)
            pid, _, host = file.read(200).decode(errors="replace").strip().partition(" ")
            file.close()
            raise UsageError(
                f"{path.parent}: process {pid or '?'} on {host or '?'} runs a study in it;"
                " wait for its end, or use another folder"
            ) from None
        except OSError:
            return file  # a file system without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its last holder just removed it


def default_folder(model: str, device_kind: str) -> Path:
    """A new name under `RESULTS`, from the UTC time."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2]).strip("-")
    return _unused(RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}-{device_kind}")


def refuse_used_folder(folder: Path | None) -> None:
    """Check that `--out` names a new or an empty folder. Raises UsageError if it names a file, or
    a folder that is not empty."""
    if folder is None or not folder.exists():
        return
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - _BEFORE_MANIFEST:
        what = "has a study or other files in it" if folder.is_dir() else "is a file"
        raise UsageError(
            f"--out {folder}: {what}; resume its study with --resume {folder}, or use a new"
            f" folder, e.g. --out {_unused(folder)}"
        )


def create_folder(folder: Path, flag: str = "--out") -> Path:
    """Create `folder` and its parents, and check that files can be written in it.

    `flag` is the user's flag for it. A new parent is marked as `OURS`, but for `RESULTS`. Raises
    UsageError if it cannot be created or written in.
    """
    try:
        if not folder.parent.exists():
            folder.parent.mkdir(parents=True)
            if not is_ours(folder.parent):
                (folder.parent / OURS).touch()
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        other = _unused(Path("/tmp/autotune-study"))
        raise UsageError(f"{flag} {folder}: {reason}; use e.g. {flag} {other}") from error
    return folder


def is_ours(place: Path) -> bool:
    """Whether studies in `place` are the user's own: `RESULTS`, or made for this user."""
    with suppress(OSError):
        if place.resolve() == RESULTS.resolve():
            return True
        return (place / OURS).stat().st_uid == os.getuid()
    return False


def _unused(folder: Path) -> Path:
    """`folder`, or the first of `folder`-2, -3, ... that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(path for path in numbered if not path.exists())
