"""Databases that may hold studies of many folders: SQLite and PostgreSQL.

A database is a class and a row of `DATABASES`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage

from autotune.errors import UsageError
from autotune.installed import missing
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal_file import loaded
from autotune.result.folder.manifest import Manifest

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUSY_S = 10.0
"""Seconds that a write waits for other users of a database."""
TURN_S = 0.01
"""Seconds between two looks for a turn."""
_EXAMPLE = "sqlite:///studies.db"
_TABLES = {"studies", "trials", "version_info"}
"""Some tables of Optuna."""
MANIFEST_IN_STUDY = "manifest"
"""The attribute with the manifest, for processes that join."""


class UnreachableError(OSError):
    """A database does not answer, or others keep it locked; it may answer later."""


class Database:
    """A database that SQLAlchemy can talk to, by its URL."""

    example: str
    options: dict[str, Any] = {}  # noqa: RUF012 - of SQLAlchemy's engine
    shared = True

    def __init__(self, folder: Folder, url: str, of: Manifest) -> None:
        self.where = f"--storage {url}"
        self.url, self.name, self.part = url, of.study_name, of.part
        self._manifest = of
        self._folder = folder
        self._storage: RDBStorage | None = None

    @classmethod
    def checked(cls, url: str) -> str:
        """See the function of this name."""
        from sqlalchemy.exc import SQLAlchemyError

        spelled = cls._spelled(url)
        try:
            if tables := cls.tables(spelled):
                if not tables >= _TABLES:
                    raise UsageError(f"--storage {url}: holds other data; name another one")
                cls.as_it_is(spelled).engine.dispose()
        except (OSError, SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            raise UsageError(f"--storage {url}: {_why(error)}; use e.g. {cls.example}") from error
        return spelled

    @classmethod
    def tables(cls, url: str) -> set[str]:
        """Raises OSError or SQLAlchemyError if no study can be written."""
        from sqlalchemy import inspect

        with cls._connected(url) as connection:
            cls._check_writable(connection)
            return set(inspect(connection).get_table_names())

    @classmethod
    def _spelled(cls, url: str) -> str:
        """`url` with an absolute path. Raises UsageError for a bad one."""
        raise NotImplementedError

    @classmethod
    def _check_writable(cls, connection: Connection) -> None:
        """Raises as `tables` does."""
        raise NotImplementedError

    @classmethod
    @contextmanager
    def _connected(cls, url: str) -> Iterator[Connection]:
        from sqlalchemy import create_engine

        engine = create_engine(cls.of_engine(url), **cls.options)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()

    @classmethod
    def as_it_is(cls, url: str) -> RDBStorage:
        """Raises if its tables are of another version of Optuna."""
        with cls._making(url):  # Optuna completes half-made tables
            return RDBStorage(cls.of_engine(url), cls.options, skip_table_creation=True)

    @classmethod
    def _making(cls, url: str) -> AbstractContextManager[None]:
        """A context in which no other process makes tables."""
        return nullcontext()

    @classmethod
    def of_engine(cls, url: str) -> str:
        """`url` as SQLAlchemy writes it."""
        return url

    @classmethod
    def names(cls, url: str) -> list[str]:
        return optuna.get_all_study_names(cls.as_it_is(url)) if cls.tables(url) else []

    def exists(self) -> bool:
        return self.name in self.names(self.url)

    def open(self) -> tuple[optuna.Study, int]:
        self._storage = self._made()
        with self.together():
            study = self.again()
            self._claim(study)
            if not self.part and MANIFEST_IN_STUDY not in study.user_attrs:
                study.set_user_attr(MANIFEST_IN_STUDY, asdict(self._manifest))
        return study, 0

    def again(self) -> optuna.Study:
        assert self._storage is not None, "`open` comes before this"
        return loaded(self._storage, self.name)

    def read(self) -> optuna.Study:
        return optuna.load_study(storage=self.as_it_is(self.url), study_name=self.name)

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction: Optuna's own commits have no effect within it."""
        from sqlalchemy.exc import SQLAlchemyError

        assert self._storage is not None, "`open` comes before this"
        sessions, engine = self._storage.scoped_session, self._storage.engine
        lost = False
        try:
            with engine.begin() as connection:
                self._lock(connection)
                sessions.remove()
                sessions.configure(bind=connection, join_transaction_mode="rollback_only")
                try:
                    yield
                finally:
                    lost = connection.invalidated  # the error may come from a later use
                    sessions.remove()
                    sessions.configure(bind=engine)
        except (StorageInternalError, SQLAlchemyError) as error:
            kind = UnreachableError if lost or self._may_answer(_cause(error)) else OSError
            raise kind(errno.EIO, _why(error), self.url) from error

    def _made(self) -> RDBStorage:
        """The storage with Optuna's tables."""
        with self._making(self.url):
            return RDBStorage(self.of_engine(self.url), self.options)

    def _lock(self, connection: Connection) -> None:
        """Keep others from writing to the study until the transaction of `connection` ends."""
        raise NotImplementedError

    def _may_answer(self, error: BaseException | None) -> bool:
        """Whether a retry may work after `error`."""
        raise NotImplementedError

    def _claim(self, study: optuna.Study) -> None:
        """Note the folder of this part of `study`. It may have been moved, but not copied."""
        key = f"folder-{self.part}" if self.part else "folder"
        here = self._folder.path.absolute()
        there = Path(study.user_attrs.get(key, here))
        if _named_in(there) == (self.name, self.part) and not there.samefile(here):
            raise UsageError(
                f"{self.where}: study {self.name} in it belongs to {there}; resume that one, or"
                " start a new study"
            )
        study.set_user_attr(key, str(here))


class _Sqlite(Database):
    """A file. Readers may look at any time; writers wait for each other."""

    example = _EXAMPLE
    options = {"connect_args": {"timeout": BUSY_S}}  # noqa: RUF012

    @classmethod
    def _spelled(cls, url: str) -> str:
        return f"sqlite:///{_sqlite_path(url).absolute()}"

    @classmethod
    def tables(cls, url: str) -> set[str]:
        path = _sqlite_path(url)
        if path.exists():
            return super().tables(url)
        with tempfile.TemporaryFile(dir=next(each for each in path.parents if each.exists())):
            return set()  # SQLite would create the file

    @classmethod
    def _check_writable(cls, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _made(self) -> RDBStorage:
        path = _sqlite_path(self.url)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # made whole: others may make it, or look at it, meanwhile
            new = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
            RDBStorage(f"sqlite:///{new}", self.options).engine.dispose()
            try:
                os.link(new, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                shutil.copyfile(new, path)
            new.unlink()
        return super()._made()

    def read(self) -> optuna.Study:
        _sqlite_path(self.url).stat()
        return super().read()

    def _lock(self, connection: Connection) -> None:
        with _turn(_sqlite_path(self.url).parent):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _may_answer(self, error: BaseException | None) -> bool:
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
        return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Keep others from beginning a write to a database in `folder`.

    SQLite has no queue: waiting writers look ten times a second for a free lock. A process that
    writes again at once takes it in between. Here it has to wait for the next one. SQLite keeps
    the database whole without this, so the wait is no longer than for a lock.
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + BUSY_S
        with suppress(OSError):  # a file system where folders have no locks
            while not _taken(place) and time.monotonic() < deadline:
                time.sleep(TURN_S)
        yield
    finally:
        os.close(place)


def _taken(file: int) -> bool:
    """Whether this process got the lock of `file`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sqlite_path(url: str) -> Path:
    """Raises UsageError if `url` names no file."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path == ":memory:" or re.search("[?%{}]", path):
        raise UsageError(
            f"--storage {url}: has no file name; write it as {_EXAMPLE}, without any of ? % {{ }}"
        )
    return Path(path)


class _Postgres(Database):
    """A server. Both sides notice a lost connection within seconds."""

    example = "postgresql://HOST/NAME"
    options = {  # noqa: RUF012
        "pool_pre_ping": True,
        "connect_args": {
            "connect_timeout": 3, "keepalives_idle": 5, "keepalives_interval": 2,
            "keepalives_count": 3, "tcp_user_timeout": 15_000,
            "prepare_threshold": None,  # a pool may send each transaction to another server
        },
    }  # fmt: skip

    @classmethod
    def _spelled(cls, url: str) -> str:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        if (shown := without_password(url)) != url:
            raise UsageError(_had_password(shown))
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            parsed = None
        if parsed is not None and parsed.password is not None:
            shown = parsed.set(password=None).render_as_string()
            raise UsageError(_had_password(shown))
        if parsed is None or not parsed.database or re.search("[{}]", url):
            raise UsageError(
                f"--storage {url}: has no database name; write it as {cls.example},"
                " without { or }"
            )
        if why := missing("psycopg"):
            raise UsageError(f"--storage {url}: {why}")
        return url

    @classmethod
    def of_engine(cls, url: str) -> str:
        return url.replace("postgresql:", "postgresql+psycopg:", 1)

    @classmethod
    def _check_writable(cls, connection: Connection) -> None:
        if lack := connection.exec_driver_sql(_LACK).scalar():
            raise PermissionError(errno.EACCES, lack)

    @classmethod
    @contextmanager
    def _making(cls, url: str) -> Iterator[None]:
        """One process makes the tables, others wait."""
        with cls._connected(url) as connection:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('optuna'))")
            yield

    def _lock(self, connection: Connection) -> None:
        """The server frees the lock if its holder is silent for a minute, frozen or cut off."""
        connection.exec_driver_sql(
            "SELECT set_config('idle_in_transaction_session_timeout', '60s', true),"
            " pg_advisory_xact_lock(hashtextextended(%s, 0))",
            (self.name,),
        )

    def _may_answer(self, error: BaseException | None) -> bool:
        from sqlalchemy import exc

        lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
        return lost or isinstance(error, exc.OperationalError | exc.InterfaceError)


def without_password(url: str) -> str:
    plain = re.sub(r"(?<=//)([^/:@]*):[^/@]*@", r"\1@", url)
    return re.sub(r"[?&]\w*password=[^&]*", "", plain)


def _had_password(shown: str) -> str:
    return (
        f"--storage {shown}: had a password, which the study's files would show; leave it out, and"
        " put it into ~/.pgpass or PGPASSWORD"
    )


_LACK = """
    SELECT CASE
        WHEN pg_is_in_recovery() THEN 'is a copy that can only be read'
        WHEN to_regclass('trials') IS NULL THEN
            CASE WHEN coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) THEN NULL
            ELSE 'its user may make no tables in it' END
        WHEN NOT has_table_privilege('trials', 'INSERT') THEN 'its user may not write to it'
    END
"""
"""The reason why a PostgreSQL database cannot hold studies, in words."""
DATABASES: dict[str, type[Database]] = {"sqlite": _Sqlite, "postgresql": _Postgres}
"""By the scheme of the URL."""


def _cause(error: Exception) -> BaseException | None:
    """The error behind one of Optuna."""
    return error.__cause__ if isinstance(error, StorageInternalError) else error


def _why(error: Exception) -> str:
    """`error` in one line. Servers put the reason on the first one."""
    cause = _cause(error)
    said = getattr(cause, "strerror", None) or str(getattr(cause, "orig", cause)).strip()
    return said.splitlines()[0].rstrip(".") if said else type(cause).__name__


def _named_in(folder: Path) -> tuple[str, str] | None:
    """Study and part that lie in `folder`; None if there is none."""
    try:
        found = manifest.read(folder)
    except UsageError:
        return None
    return found.study_name, found.part
