"""The side of a study that `tests.support.stub_agent` dials."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.measure.launch.launcher import Launcher
from tests.support.namespaces import PATIENCE_S, Host, command_line

STUB = "tests.support.stub_agent"
SECRET = "s3cr3t-of-one-study"


@dataclass(frozen=True)
class Cluster:
    """Hosts of an engine."""

    engine: str
    hosts: tuple[Host, ...]
    launch: str
    variables: dict[str, str]


@dataclass
class Dialed:
    """Agents that a launcher started, each by its line."""

    launcher: Launcher
    logs: Path
    told: list[str] = field(default_factory=list)
    """Lines of the launcher about its start."""
    _open: list[socket.socket] = field(default_factory=list)

    def start(
        self, by_hand: Callable[[list[str]], None] | None = None, **key: Any
    ) -> list[dict[str, Any]]:
        """All agents, once they have dialled, by the names of their nodes.

        `by_hand` gets the lines of a launcher that leaves it to others.
        """
        line = json.dumps({"secret": SECRET} | key)
        key_file = self.logs / "key.json"
        key_file.write_text(line)
        with socket.create_server((self.launcher.address(), 0)) as listener:
            listener.settimeout(PATIENCE_S)
            host, port = listener.getsockname()
            self.told = self.launcher.start(f"{host}:{port}", line, key_file, self.logs)
            if by_hand is not None:
                by_hand(self.told)
            return self.accept(listener, self.launcher.nodes)

    def accept(self, listener: socket.socket, count: int) -> list[dict[str, Any]]:
        """So many agents that dial `listener`, by the names of their nodes."""
        said = []
        for _ in range(count):
            connection, _ = listener.accept()
            self._open.append(connection)
            with connection.makefile() as stream:
                said.append(json.loads(stream.readline()))
        return sorted(said, key=lambda agent: str(agent["node"]))

    def hang_up(self) -> None:
        """End the connections of all agents."""
        while self._open:
            self._open.pop().close()

    def polled(self, lines: int) -> list[str]:
        """So many lines of the launcher, as they come."""
        found: list[str] = []

        def enough() -> bool:
            found.extend(self.launcher.poll())
            return len(found) >= lines

        wait_until(enough)
        return sorted(found)


@contextlib.contextmanager
def dialed(launcher: Launcher, logs: Path) -> Iterator[Dialed]:
    """Nothing of it is left afterwards."""
    made = Dialed(launcher, logs)
    try:
        yield made
    finally:
        made.hang_up()
        launcher.close()


def stubs(hosts: tuple[Host, ...]) -> list[str]:
    """Names of hosts on which agents run."""
    return [host.name for host in hosts if any(STUB in line for line in host.processes().values())]


def telling() -> list[str]:
    """Command lines on this machine that hold the secret of a key."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [line for line in map(command_line, pids) if SECRET in line]


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
