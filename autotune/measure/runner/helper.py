"""A helper process that counts or traces models, or measures a data loader."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.process import RankProcess
from autotune.wire.dial import Dial
from autotune.wire.helpers import Count, Counted, Describe, Described, Load, Loaded
from autotune.wire.messages import Message, WireError
from autotune.wire.ranks import Entered, Fault, Hello
from autotune.wire.stopping import Phase

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""For a helper that needs no GPU: it must not leave a context there."""
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
        limit_s: float,
        environment: dict[str, str] = NO_GPU,
        channel: Channel | None = None,
    ) -> None:
        """It has `limit_s` to answer. It dials `channel`, which stays open, or one of its own."""
        self._asked = asked
        self._limit_s = limit_s
        self.found: Described | Counted | Loaded | None = None
        self.why = ""
        """Why there is no answer."""
        self.fault: Fault | None = None
        """Its last message, if it failed with one."""
        self.works = True
        """Whether it may still answer."""
        self.phase, self.entered = Phase.IMPORT, time.monotonic()
        self._deadline = time.monotonic() + limit_s
        self._own_channel = channel is None
        self._channel = channel or Channel()
        self._peer: Peer | None = None
        self.log = logs / f"{type(asked).__name__.lower()}.log"
        dial = self._channel.dial(0, child=True)
        self._token = dial.token
        self._process = start(dial, self.log, environment)

    def poll(self) -> None:
        """Handle messages that came, without a wait for more."""
        if self.works:
            self._look()
        self._process.limit_log()

    def send(self, message: Message) -> None:
        """Send a message, after it entered a phase."""
        if self._peer is not None and self.works:
            with suppress(OSError):  # the next read sees its end
                self._peer.send(message)

    def close(self) -> None:
        """End all processes of the helper."""
        if not self.works:
            return
        self.works = False
        self._process.signal(signal.SIGKILL)
        self._process.reap()
        if self._peer is not None:
            self._peer.close()
        if self._own_channel:
            self._channel.close()

    def _look(self) -> None:
        ended = self._process.exit_code() is not None  # asked first: its last words still count
        while self._peer is None and (peer := self._channel.accept()) is not None:
            self._let_in(peer)
        if self._peer is not None:
            self._receive(self._peer)
        if ended and self.works and self._peer is None and not self._channel.awaited:
            self._fail("the helper ended without an answer")
        elif time.monotonic() > self._deadline:
            self._fail(
                f"the helper gave no answer in {self._limit_s:.0f} s"
                if self._limit_s > 0
                else "the budget left the helper no time"
            )

    def _let_in(self, peer: Peer) -> None:
        hello = None
        with suppress(OSError, WireError):  # `poll` sees the end of the process
            hello = peer.receive()
        if not isinstance(hello, Hello) or hello.token != self._token:
            peer.close()
            return
        self._peer = peer
        with suppress(OSError):  # fails if it ended; its last words still count
            peer.send(self._asked)

    def _receive(self, peer: Peer) -> None:
        try:
            for message in peer.arrived():
                self._take(message)
        except EOFError:
            self._fail("the helper ended without an answer")
        except WireError as error:
            self._fail(f"the helper sent an invalid message: {error}")

    def _take(self, message: Message) -> None:
        match message:
            case Described() | Counted() | Loaded():
                self.found = message
                self.close()
            case Entered(phase):
                self.phase, self.entered = phase, time.monotonic()
            case Fault():
                self.fault = message
                self._fail(message.error)
            case _:
                self._fail(f"the helper sent a {type(message).__name__}")

    def _fail(self, why: str) -> None:
        if self.works:
            self.why = why
            self.close()
