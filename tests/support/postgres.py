"""A server of PostgreSQL for the tests of a process, in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.namespaces import free_port

USER = "autotune"


def binaries() -> Path | None:
    """The folder of the server's programs, of the newest version; None where there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _version(initdb: Path) -> float:
    return float(initdb.parts[-3])


class Server:
    """It may be killed, and started again. None runs before `begin`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._programs = programs
        self._data = folder / "data"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        self._run("initdb", "-D", str(self._data), "-U", USER, "--auth=trust", "--no-sync")

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{database}"

    @property
    def url(self) -> str:
        return self.url_of("studies")

    def begin(self) -> None:
        """For a test: with nothing in its database."""
        self._port = free_port()
        self.start()
        every = self.url_of("postgres")
        self.sql("DROP DATABASE IF EXISTS studies", every)
        self.sql("CREATE DATABASE studies", every)

    def start(self) -> None:
        """Returns when it answers."""
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self._port),
             *(f"-c{name}={value}" for name, value in options.items())],
            stdout=self._log.open("ab"), stderr=subprocess.STDOUT, user=_user(), cwd="/",
        )  # fmt: skip
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it and all of its connections in the middle of whatever they do."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def sql(self, statement: str, url: str | None = None) -> list[tuple[object, ...]]:
        """What `statement` returns."""
        import psycopg

        with psycopg.connect(url or self.url, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def _answers(self) -> bool:
        asked = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return not subprocess.run([self._programs / asked[0], *asked[1:]], check=False).returncode

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / name), *arguments], user=_user(), cwd="/", check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip


@contextmanager
def server(programs: Path) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgres-"))
    made = None
    try:
        made = Server(folder, programs)
        yield made
    finally:
        if made is not None:
            made.kill()
        shutil.rmtree(folder)


def _user() -> str | None:
    """Whom it runs as: it refuses root."""
    return pwd.getpwnam("nobody").pw_name if os.geteuid() == 0 else None
