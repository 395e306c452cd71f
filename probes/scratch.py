"""A checkpoint on the disk, which is deleted as soon as it is written."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import torch

FREE_BYTES = 2**30
"""What is left free on the disk."""


class Scratch:
    """Writes objects to files without names: not even SIGKILL leaves one behind."""

    def __init__(self, folder: str) -> None:
        """Where there is no such `folder`, as on another machine, it is that of temporary files.
        Nothing is written if it is empty: what saving takes of memory counts all the same."""
        self._folder = folder and (folder if Path(folder).is_dir() else tempfile.gettempdir())
        self.written_bytes = 0
        """Sum over all files; 0 once the disk had too little room."""

    def __call__(self, state: Any) -> None:
        """Write `state` to the disk, not only to the kernel's cache."""
        if not self._folder:
            torch.save(state, _Bounded(None))
            return
        with tempfile.TemporaryFile(dir=self._folder) as file:
            bounded = _Bounded(file)
            torch.save(state, bounded)
            file.flush()
            os.fsync(file.fileno())
            self.written_bytes += file.tell()
            if bounded.full:
                self._folder, self.written_bytes = "", 0


class _Bounded(io.BytesIO):
    """Passes on what is written to it, while the disk has room."""

    def __init__(self, file: IO[bytes] | None) -> None:
        super().__init__()
        self._file, self.full = file, False

    def write(self, data: Any, /) -> int:
        if self._file is not None:
            disk = os.statvfs(self._file.fileno())
            self.full = disk.f_bavail * disk.f_frsize < len(data) + FREE_BYTES
            if self.full:
                self._file.truncate(0)
                self._file = None
            else:
                self._file.write(data)
        return len(data)
