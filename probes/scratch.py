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
        """Nothing is written if there is no such `folder`, as on another machine: what saving
        takes of memory counts all the same."""
        self._folder = folder
        self.refused = not folder or not Path(folder).is_dir()
        """Whether there is no folder, or files need more than half of its disk's free space."""
        self._left_bytes = 0 if self.refused else _free_bytes(folder) // 2
        self.written_bytes = 0
        """Sum over all files; of no meaning if `refused`."""

    def __call__(self, state: Any) -> None:
        """Write `state` to the disk, not only to the kernel's cache."""
        if self.refused:
            torch.save(state, _Bounded(None, 0))
            return
        with tempfile.TemporaryFile(dir=self._folder) as file:
            bounded = _Bounded(file, self._left_bytes)
            torch.save(state, bounded)
            file.flush()
            os.fsync(file.fileno())
            self.written_bytes += file.tell()
            self.refused = bounded.full


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
