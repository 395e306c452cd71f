"""Start ranks: fork them from a process that has imported their libraries, or spawn them.

Importing torch and DeepSpeed takes seconds, and a study starts dozens of groups.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

from autotune.measure.runner import StopRequestedError, local
from autotune.measure.runner.channel import Peer
from autotune.measure.runner.local import LocalProcess, full_environment, spawn
from autotune.wire.dial import Dial
from autotune.wire.forks import Fork, Forkable, Forked
from autotune.wire.messages import Message, WireError
from autotune.wire.stream import Stream

SERVER = [sys.executable, "-P", "-m", "probes.forkserver"]
IMPORT_LIMIT_S = 120.0
REPLY_S = 15.0
"""A fork takes a tenth of a second, or some seconds on a busy machine."""
POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36


class Forks:
    """Ranks forked from the server of their engine, which starts when it is first needed.

    If a server cannot fork, ranks of that engine are spawned from then on. If forked ranks do not
    come up, all ranks are spawned. One line says why. `node.Node` explains the methods.
    """

    def __init__(
        self,
        logs: Path,
        environment: dict[str, str],
        note: Callable[[str], None],
        works: bool = sys.platform == "linux",
    ) -> None:
        """`environment` extends the study's own. Ranks are spawned unless forking `works`."""
        self._logs = logs
        self._environment = environment
        self._note = note
        self._servers: dict[str, _Server] = {}
        self._one_at_a_time = threading.RLock()  # groups may start at once, each in a thread
        self._works = works
        self._proven = False
        self._spawned: set[str] = set()
        """Engines whose ranks are not forked."""

    def ready(self, engine: str) -> bool:
        server = self._servers.get(engine)
        known = engine in self._spawned or (server is not None and server.imported)
        return not self._works or known

    def prepare(self, engine: str, family: str, stop: Callable[[], bool], deadline: float) -> None:
        with self._one_at_a_time:
            if not self.ready(engine):
                self._prepare(engine, family, stop, deadline)

    def _prepare(
        self, engine: str, family: str, stop: Callable[[], bool], deadline: float
    ) -> None:
        log = self._logs / f"forkserver-{engine}.log"
        if engine not in self._servers:
            self._servers[engine] = _Server([engine, family], log, self._environment)
        server = self._servers[engine]
        while not server.heard(POLL_S):
            if stop():
                raise StopRequestedError
            if time.monotonic() > server.began + IMPORT_LIMIT_S:
                self._spawn(engine, f"the fork server's imports take too long, see {log.name}")
                return
            if time.monotonic() > deadline:
                return  # the next caller goes on waiting
        server.imported = True
        try:
            but = server.why_not()
        except _ServerError as error:
            but = str(error)
        if but:
            self._spawn(engine, but)

    def take(self, other: Forks) -> None:
        """Take the servers of `other`, with the same variables. Their logs follow at their end."""
        for server in other._servers.values():
            server.kept = self._logs / server.log.name
        self._servers |= other._servers
        other._servers.clear()

    def start_rank(
        self, engine: str, dial: Dial, log: Path, environment: dict[str, str]
    ) -> LocalProcess:
        """A rank that will dial the study. `environment` extends the study's own."""
        with self._one_at_a_time:
            server = self._servers.get(engine)
            if server is not None and server.imported:
                try:
                    return server.fork(dial, log, environment)
                except _ServerError as error:
                    self._spawn(engine, str(error))
        return local.start_rank(dial, log, environment)

    def succeeded(self) -> None:
        self._proven = True

    def give_up(self, why: str) -> bool:
        with self._one_at_a_time:
            if self._proven or not self._works:
                return False
            self._say(f"the first ones that were forked did not come up: {why}")
            self.close()
            return True

    def kill(self, why: str = "") -> None:
        for server in self._servers.values():
            server.process.signal(signal.SIGKILL)

    def close(self) -> None:
        """End all servers; later ranks are spawned."""
        self._works = False
        for engine in list(self._servers):
            self._servers[engine].close()
            del self._servers[engine]

    def _spawn(self, engine: str, why: str) -> None:
        self._say(why, f" of {engine}")
        self._spawned.add(engine)
        self._servers.pop(engine).close()

    def _say(self, why: str, of: str = "") -> None:
        self._note(f"each rank{of} imports its libraries itself from now on: {why}")


class _ServerError(Exception):
    """A fork server failed."""


class _Server:
    """One process that has imported the libraries of one engine's ranks."""

    def __init__(self, needs: list[str], log: Path, environment: dict[str, str]) -> None:
        self.began = time.monotonic()
        self.imported = False
        ours, theirs = socket.socketpair()
        with theirs:
            # Else numpy's OpenBLAS starts threads on import. torch computes with its own.
            alone = {"OPENBLAS_NUM_THREADS": "1"}
            self.process = spawn([*SERVER, *needs], theirs.fileno(), log, environment | alone)
        self.log = log
        self.kept: Path | None = None
        """Where to append its log when it ends."""
        ours.settimeout(REPLY_S)
        self._peer = Peer(Stream(ours))

    def heard(self, timeout_s: float) -> bool:
        """Whether a message, or its end, arrives within `timeout_s`."""
        return bool(wait([self._peer], timeout_s))  # type: ignore[list-item]

    def why_not(self) -> str:
        """Why it cannot fork; empty if it can. Call it once, for the first message."""
        match self._receive():
            case Forkable(but):
                return but
            case other:
                return f"the fork server sent a {type(other).__name__}"

    def fork(self, dial: Dial, log: Path, environment: dict[str, str]) -> LocalProcess:
        """A new rank. Raises _ServerError if the server could not fork it."""
        everything = full_environment(log, environment)
        with _adopting_orphans():
            try:
                self._peer.send(Fork(dial=dial, log=str(log.absolute()), environment=everything))
            except OSError as error:
                raise _ServerError(self._gone) from error
            match self._receive():
                case Forked(pid):
                    process = LocalProcess(pid, log)
                case Forkable(but):
                    raise _ServerError(but)
                case other:
                    raise _ServerError(f"the fork server sent a {type(other).__name__}")
        try:
            process.exit_code()
        except ChildProcessError as error:
            raise _ServerError("a forked rank could not be handed over") from error
        return process

    def close(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.reap()
        self._peer.close()
        if self.kept is not None:
            with suppress(OSError), self.kept.open("ab") as kept:
                kept.write(self.log.read_bytes())

    def _receive(self) -> Message:
        try:
            return self._peer.receive()
        except (EOFError, OSError, WireError) as error:
            raise _ServerError(self._gone) from error

    @property
    def _gone(self) -> str:
        return f"the fork server is gone, see {self.log.name}"


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Meanwhile, this process adopts orphans of its descendants."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
