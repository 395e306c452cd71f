"""A helper process that counts or traces models, or measures a data loader."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from autotune.runner.channel import Channel, Peer
from autotune.runner.forks import RankProcess
from autotune.wire.messages import (
    Count,
    Counted,
    Describe,
    Described,
    Dial,
    Entered,
    Fault,
    Hello,
    Load,
    Loaded,
    Message,
    WireError,
)
from autotune.wire.stopping import Phase

Start = Callable[[Dial, Path, dict[str, str]], RankProcess]
"""Starts a process that dials: with that log and those variables beside the study's own."""


class Helper:
    """One process and one request. An answer or a failure ends the process."""

    def __init__(
        self,
        asked: Describe | Count | Load,
        start: Start,
        *,
        logs: Path,
        environment: dict[str, str],
        note: Callable[[str], None],
        limit_s: float,
    ) -> None:
        """Start the helper, with the `environment` of the ranks whose memory it speaks of.

        `note` is told, once, if there is no answer, which is waited for `limit_s`.
        """
        self._asked = asked
        self._note = note
        self._limit_s = limit_s
        self._found: Described | Counted | Loaded | None = None
        self.fault: Fault | None = None
        """What it said as it failed, if it said something."""
        self.works = True
        """Whether there may be an answer yet."""
        self.phase, self.entered = Phase.IMPORT, time.monotonic()
        """What it said to be doing, and since when."""
        self._deadline = time.monotonic() + limit_s
        self._channel = Channel()
        self._peer: Peer | None = None
        self._log = logs / f"{type(asked).__name__.lower()}.log"
        self._process = start(self._channel.dial(0, child=True), self._log, environment)

    def poll(self) -> Described | Counted | Loaded | None:
        """Handle what has come, without waiting for more. The answer, once it is there."""
        while self.works and self._handled_one():
            pass
        self._process.limit_log()
        return self._found

    def send(self, message: Message) -> None:
        """Tell it more, once it has entered a phase."""
        if self._peer is not None and self.works:
            with suppress(OSError):  # its end is seen by the next read
                self._peer.send(message)

    def close(self) -> None:
        """No process of the helper is left when this returns."""
        if not self.works:
            return
        self.works = False
        self._process.signal(signal.SIGKILL)
        self._process.reap()
        if self._peer is not None:
            self._peer.close()
        self._channel.close()

    def _handled_one(self) -> bool:
        ended = self._process.exit_code() is not None  # asked first: its last words still count
        if self._peer is None and wait([self._channel], 0):  # type: ignore[list-item]
            self._accept()
            return True
        if self._peer is not None and wait([self._peer], 0):  # type: ignore[list-item]
            self._receive(self._peer)
            return True
        if ended:
            self._fail("the helper ended without an answer")
        elif time.monotonic() > self._deadline:
            self._fail(f"the helper gave no answer in {self._limit_s:.0f} s")
        return False

    def _accept(self) -> None:
        peer = self._channel.accept()
        if peer is None:
            return
        with suppress(EOFError, OSError, WireError):  # the process will be seen to end
            hello = peer.receive()
            if isinstance(hello, Hello) and hello.pid == self._process.pid:
                peer.send(self._asked)
                self._peer = peer
                return
        peer.close()

    def _receive(self, peer: Peer) -> None:
        try:
            message = peer.receive()
        except EOFError:
            self._fail("the helper ended without an answer")
            return
        except WireError as error:
            self._fail(f"the helper sent what is no message: {error}")
            return
        match message:
            case Described() | Counted() | Loaded():
                self._found = message
                self.close()
            case Entered(phase):
                self.phase, self.entered = phase, time.monotonic()
            case Fault():
                self.fault = message
                self._fail(message.error)
            case _:
                self._fail(f"the helper sent a {type(message).__name__}")

    def _fail(self, why: str) -> None:
        self.close()
        self._note(f"{why}; see {self._log.name}")
