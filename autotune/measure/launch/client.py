"""A local process, such as srun or ssh, that runs agents elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

GRACE_S = 1.0
"""Seconds for it to end after its agents, and after each signal."""
_LAST_BYTES = 2**16


class Client:
    """It leads a session of its own, reads the agents' key, and appends to `log`.

    Its stdin stays open until it is closed.
    """

    def __init__(
        self, command: list[str], key: str, log: Path, environment: dict[str, str] | None = None
    ) -> None:
        """Raises `OSError` if there is no such program."""
        self._log = log
        self._told = False
        with log.open("ab") as stream:
            self._read_bytes = stream.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{key}\n".encode())
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def new_lines(self) -> list[str]:
        """Whole lines that its log got since the last call."""
        with self._log.open("rb") as stream:
            stream.seek(self._read_bytes)
            come = stream.read()
        whole, _, _ = come.rpartition(b"\n")
        self._read_bytes += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()

    def left(self) -> str:
        """How it ended, in the first call after its end; else empty."""
        code = self._process.poll()
        if code is None or self._told:
            return ""
        self._told = True
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def last_line(self, start: str = "") -> str:
        """The last line of its log with `start` and more, without `start`."""
        with self._log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        said = [rest for line in map(str.strip, lines) if line.startswith(start)
                and (rest := line.removeprefix(start).strip())]  # fmt: skip
        return said[-1] if said else ""

    def send(self, number: signal.Signals | None) -> None:
        """Send `number` to it and its children; None only closes their stdin."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def ends_by(self, deadline: float) -> bool:
        """Whether it ends until `time.monotonic()` is at `deadline`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        return self._process.returncode is not None


def end(clients: Iterable[Client], grace_s: float = GRACE_S) -> None:
    """End `clients`, if need be by signals."""
    left = list(clients)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for client in left:
            client.send(number)
        deadline = time.monotonic() + grace_s
        left = [client for client in left if not client.ends_by(deadline)]


def with_line(how: str, line: str) -> str:
    """`how` something ended, and its last `line`, if there is one."""
    return f"{how}: {line}" if line else how
