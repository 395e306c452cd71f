"""A checkpoint on the disk, which is deleted as soon as it is written."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import torch


class BriefFiles:
    """Writes objects to files without names: not even SIGKILL leaves one behind."""

    def __init__(self, folder: str) -> None:
        """Where there is no such `folder`, as on another machine, it is that of temporary files.
        Nothing is written if it is empty: what saving takes of memory counts all the same."""
        self._folder = folder and (folder if Path(folder).is_dir() else tempfile.gettempdir())
        self._left_bytes = _free_bytes(self._folder) // 2 if self._folder else 0
        self.written_bytes = 0
        """Sum over all files; of no meaning if `full`."""
        self.full = False
        """Whether they need more than half of what was free on the disk."""

    def __call__(self, state: Any) -> None:
        """Write `state` to the disk, not only to the kernel's cache."""
        if not self._folder or self.full:
            torch.save(state, _Bounded(None, 0))
            return
        with tempfile.TemporaryFile(dir=self._folder) as file:
            bounded = _Bounded(file, self._left_bytes)
            torch.save(state, bounded)
            file.flush()
            os.fsync(file.fileno())
            self.written_bytes += file.tell()
            self.full = bounded.full


class _Bounded(io.BytesIO):
    """Passes on what is written to it, while so many bytes of the disk are left free."""

    def __init__(self, file: IO[bytes] | None, left_bytes: int) -> None:
        super().__init__()
        self._file, self._left_bytes, self.full = file, left_bytes, False

    def write(self, data: Any, /) -> int:
        if self._file is not None:
            self.full = _free_bytes(self._file.fileno()) < len(data) + self._left_bytes
            if self.full:
                self._file.truncate(0)
                self._file = None
            else:
                self._file.write(data)
        return len(data)


def _free_bytes(place: str | int) -> int:
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize
