"""Where Optuna's study of a folder is kept: the journal in that folder, or a database.

What is peculiar to a storage is here alone: how its URL is checked, how a study in it is opened
and read, and how what is written together gets there. A database is a class and a row of
`_DATABASES`.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from autotune.errors import UsageError
from autotune.folder import manifest
from autotune.folder.folder import Folder
from autotune.folder.manifest import IN_JOURNAL, Manifest

BUSY_S = 10.0
"""How long a write waits for others who use a database."""
_EXAMPLE = "sqlite:///studies.db"


class Storage(Protocol):
    """Of one study."""

    where: str
    """For messages."""

    def exists(self) -> bool:
        """Whether the study is there."""
        ...

    def open(self) -> tuple[optuna.Study, int]:
        """The study, made where it is not there, and the torn bytes that were cut off.

        Raises:
            UsageError: what is there is damaged, or another folder's.
        """
        ...

    def read(self) -> optuna.Study:
        """The study as it is; nothing is written. Raises whatever is wrong with it."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A context whose writes get there at once, as it ends: each that comes alone waits for
        the disk. Raises OSError."""
        ...


def storage_of(folder: Folder, of: Manifest) -> Storage:
    """Of the study in `folder`, whose manifest is `of`. Raises UsageError for no known one."""
    url = of.options.get("storage")
    if url is None:
        return JournalFile(folder.optuna_log)
    return _kind(url)(folder, url, of.study_name)


def checked(url: str) -> str:
    """`url` with what it leaves to the current folder; checks that studies can be kept there.

    Nothing is written.

    Raises:
        UsageError: they cannot.
    """
    return _kind(url).checked(url)


def _kind(url: str) -> type[_Database]:
    scheme = url.partition(":")[0]
    if scheme not in _DATABASES:
        raise UsageError(
            f"--storage {url}: unknown; write it as {_EXAMPLE}, or leave it out for the journal in"
            " the study's folder"
        )
    return _DATABASES[scheme]


# The journal.


class JournalFile:
    """A file of JSON lines, of one study. Whatever interrupts it, only its end can be torn."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._backend: _Backend | None = None

    def exists(self) -> bool:
        return self._path.exists()

    def open(self) -> tuple[optuna.Study, int]:
        cut_bytes = repair(self._path)
        self._backend = _Backend(self._path)
        return _loaded(JournalStorage(self._backend), IN_JOURNAL), cut_bytes

    def read(self) -> optuna.Study:
        self._path.stat()  # or Optuna would create it
        backend = JournalFileBackend(self.where, _NoLock(self.where))
        return optuna.load_study(storage=JournalStorage(backend), study_name=IN_JOURNAL)

    def together(self) -> AbstractContextManager[None]:
        assert self._backend is not None, "`open` comes before this"
        return self._backend.together()


class _NoLock(JournalFileOpenLock):
    """The whole folder is held already (files.py), and a lock file could outlive its process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _Backend(JournalFileBackend):
    """Optuna's, which writes lines one by one; nobody else writes to the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _NoLock(str(path)))
        self._lines = sum(1 for _ in path.open("rb"))
        self._waiting: list[dict[str, Any]] | None = None
        """What is written when a `together` ends; None outside of one."""

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
    """Cut a torn last line off Optuna's journal; returns the bytes that were cut.

    A file that is not there has nothing torn.

    Raises:
        UsageError: a line before the last one is damaged; nothing was changed.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not (line.endswith(b"\n") and _is_entry(line)):
            if data[whole + len(line) :].strip(b"\0\r\n\t "):
                raise UsageError(
                    f"{path}: line {number} is damaged, and others follow it; cut the file before"
                    " that line to go on with what is above it"
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


# Databases, which may hold studies of many folders.


class _Database:
    """A database that SQLAlchemy can talk to, by its URL."""

    options: dict[str, Any] = {}  # noqa: RUF012 - of SQLAlchemy's engine
    checked: Callable[[str], str]

    def __init__(self, folder: Folder, url: str, name: str) -> None:
        self.where = f"--storage {url}"
        self.url, self.name = url, name
        self._folder = folder
        self._storage: RDBStorage | None = None

    def exists(self) -> bool:
        return self.name in optuna.get_all_study_names(self._as_it_is())

    def open(self) -> tuple[optuna.Study, int]:
        self._storage = RDBStorage(self.url, self.options)
        study = _loaded(self._storage, self.name)
        self._claim(study)
        return study, 0

    def read(self) -> optuna.Study:
        return optuna.load_study(storage=self._as_it_is(), study_name=self.name)

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction: Optuna's commits within it are none."""
        from sqlalchemy.exc import DBAPIError

        assert self._storage is not None, "`open` comes before this"
        sessions, engine = self._storage.scoped_session, self._storage.engine
        try:
            with engine.begin() as connection:
                sessions.remove()
                sessions.configure(bind=connection, join_transaction_mode="rollback_only")
                try:
                    yield
                finally:
                    sessions.remove()
                    sessions.configure(bind=engine)
        except (StorageInternalError, DBAPIError) as error:
            cause = error.__cause__ or error
            raise OSError(errno.EIO, str(getattr(cause, "orig", cause)), self.url) from error

    def _as_it_is(self) -> RDBStorage:
        """Raises where it is not of this version of Optuna."""
        return RDBStorage(self.url, self.options, skip_table_creation=True)

    def _claim(self, study: optuna.Study) -> None:
        """Note whose `study` is. Its folder may have been moved, but not copied."""
        here = self._folder.path.absolute()
        there = Path(study.user_attrs.get("folder", here))
        if _name_in(there) == self.name and not there.samefile(here):
            raise UsageError(
                f"{self.where}: study {self.name} in it is that of {there}; go on with that, or"
                " start a new study"
            )
        study.set_user_attr("folder", str(here))


class _Sqlite(_Database):
    """A file. Readers may look at any time; what writes meanwhile waits for them."""

    options = {"connect_args": {"timeout": BUSY_S}}  # noqa: RUF012

    def __init__(self, folder: Folder, url: str, name: str) -> None:
        super().__init__(folder, url, name)
        self._path = _sqlite_path(url)

    @staticmethod
    def checked(url: str) -> str:
        path = _sqlite_path(url).absolute()
        absolute = f"sqlite:///{path}"
        try:
            if not path.exists():
                there = next(each for each in path.parents if each.exists())
                with tempfile.TemporaryFile(dir=there):
                    pass
            elif tables := _tables(path):
                if not tables >= {"studies", "trials", "version_info"}:
                    raise UsageError(f"--storage {url}: holds something else; name a new file")
                RDBStorage(absolute, skip_table_creation=True)
        except (OSError, sqlite3.Error, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise UsageError(f"--storage {url}: {reason}; use e.g. {_EXAMPLE}") from error
        return absolute

    def exists(self) -> bool:
        return self._path.exists() and bool(_tables(self._path)) and super().exists()

    def open(self) -> tuple[optuna.Study, int]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return super().open()

    def read(self) -> optuna.Study:
        self._path.stat()  # or SQLite would create it
        return super().read()


def _sqlite_path(url: str) -> Path:
    """Raises UsageError where `url` names no file."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path == ":memory:" or re.search("[?%{}]", path):
        raise UsageError(
            f"--storage {url}: names no file; write it as {_EXAMPLE}, without any of ? % {{ }}"
        )
    return Path(path)


def _tables(path: Path) -> set[str]:
    """Of the SQLite database in `path`. Raises sqlite3.Error where it cannot be written."""
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name for (name,) in found}


_DATABASES: dict[str, type[_Database]] = {"sqlite": _Sqlite}
"""By the scheme of the URL."""


def _name_in(folder: Path) -> str | None:
    """Of the study that lies in `folder`; None where there is none."""
    try:
        return manifest.read(folder).study_name
    except UsageError:
        return None


def _loaded(storage: BaseStorage, name: str) -> optuna.Study:
    if name in optuna.get_all_study_names(storage):
        return optuna.load_study(storage=storage, study_name=name)
    return optuna.create_study(storage=storage, study_name=name, direction="maximize")
