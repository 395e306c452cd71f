"""Files of a study folder: written whole or not at all, by one process at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from autotune.options import UsageError

LOCK = "lock"


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
    """Keeps every other study out of `folder`. What a process held that died, is free.

    The kernel keeps the lock; the file says whose it is.

    Raises:
        UsageError: a process holds it already.
    """
    path = folder / LOCK
    with _locked(path) as file:
        with suppress(OSError):  # a full disk: it is held all the same
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def _locked(path: Path) -> FileIO:
    while True:
        file = FileIO(path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
        file.close()  # its last holder removed it just now
