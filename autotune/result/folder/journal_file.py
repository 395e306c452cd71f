"""Optuna's journal of a study, in its folder: a file of JSON lines."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from autotune.errors import UsageError
from autotune.result.folder.manifest import IN_JOURNAL


class JournalFile:
    """A file of JSON lines, of one study. An interruption can only tear its end."""

    shared = False
    part = ""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._backend: _Backend | None = None

    def exists(self) -> bool:
        return self._path.exists()

    def open(self) -> tuple[optuna.Study, int]:
        cut_bytes = repair(self._path)
        self._backend = _Backend(self._path)
        return self.again(), cut_bytes

    def read(self) -> optuna.Study:
        self._path.stat()  # or Optuna would create it
        backend = JournalFileBackend(self.where, _NoLock(self.where))
        return optuna.load_study(storage=JournalStorage(backend), study_name=IN_JOURNAL)

    def again(self) -> optuna.Study:
        assert self._backend is not None, "`open` comes before this"
        return loaded(JournalStorage(self._backend), IN_JOURNAL)

    def together(self) -> AbstractContextManager[None]:
        assert self._backend is not None, "`open` comes before this"
        return self._backend.together()


class _NoLock(JournalFileOpenLock):
    """No lock: the folder is held already (files.py), and a file could outlive its process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _Backend(JournalFileBackend):
    """Optuna's backend, which writes lines one by one. Nobody else writes to the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _NoLock(str(path)))
        self._lines = sum(1 for _ in path.open("rb"))
        self._waiting: list[dict[str, Any]] | None = None
        """Lines to write at the end of a `together`; None outside one."""

    @contextmanager
    def together(self) -> Iterator[None]:
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
            if waiting:
                before = self._lines
                self.append_logs(waiting)
                list(super().read_logs(before))  # Optuna's notes each line's place in the file

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self._waiting is None:
            super().append_logs(logs)
            self._lines += len(logs)
        else:
            self._waiting += json.loads(json.dumps(logs))

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        if self._waiting is None:
            yield from super().read_logs(log_number_from)
        else:
            yield from self._waiting[log_number_from - self._lines :]


def repair(path: Path) -> int:
    """Cut a torn last line off Optuna's journal; returns the number of cut bytes.

    Raises:
        UsageError: a line before the last one is damaged; the file is as it was.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not (line.endswith(b"\n") and _is_entry(line)):
            if data[whole + len(line) :].strip(b"\0\r\n\t "):
                raise UsageError(
                    f"{path}: line {number} is damaged; delete that line and all below it, and"
                    " resume from the lines above"
                )
            break
        whole += len(line)
    if whole < len(data):
        os.truncate(path, whole)
    return len(data) - whole


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def loaded(storage: BaseStorage, name: str) -> optuna.Study:
    if name in optuna.get_all_study_names(storage):
        return optuna.load_study(storage=storage, study_name=name)
    return optuna.create_study(storage=storage, study_name=name, direction="maximize")
