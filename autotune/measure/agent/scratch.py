"""A process's temporary folder, and a guard process that removes it after the process."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from pathlib import Path
from typing import NoReturn


class Scratch:
    """A folder that goes when this process ends, somehow. It forks: make it before threads."""

    def __init__(self, prefix: str, silent_s: float | None = None) -> None:
        """With `silent_s`, kill a process, with its children, that calls `alive` less often."""
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        heard, self._alive = os.pipe()
        owner = os.getpid()
        self._guard = os.fork()
        if self._guard == 0:
            os.close(self._alive)
            _guard(owner, heard, self.folder, silent_s)
        os.close(heard)
        self._left = False

    def alive(self) -> None:
        """Say that this process runs."""
        os.write(self._alive, b".")

    def close(self) -> None:
        """Remove the folder; may be called again."""
        if not self._left:
            self._left = True
            os.close(self._alive)
            os.waitpid(self._guard, 0)


def _guard(owner: int, heard: int, folder: Path, silent_s: float | None) -> NoReturn:
    try:
        os.setsid()  # so signals of a terminal or launcher to the owner's group miss it
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(heard)
        while runs := bool(select.select([heard], [], [], silent_s)[0]):
            if not os.read(heard, 4096):
                break  # it has ended, or is about to
        if not runs and os.getppid() == owner:
            os.kill(owner, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _close_all_but(heard: int) -> None:
    """Close all files but `heard`, so nobody waits for this process to close the owner's."""
    os.closerange(3, heard)
    os.closerange(heard + 1, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
