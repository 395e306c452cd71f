"""The budget's clock, and the user's wish to end before it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType


class StopFlag:
    """Set by the first SIGINT, SIGTERM or SIGHUP; the second one calls `kill` and leaves."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.kill: Callable[[], None] = lambda: None
        self._previous = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup means it
        }

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str | None:
        """The signal's name, e.g. SIGINT; None while there was none."""
        return None if self.signal is None else self.signal.name

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            self.kill()
            os._exit(128 + number)
        self.signal = signal.Signals(number)


class Clock:
    """The budget's clock. `started` is a reading of `time.monotonic`."""

    def __init__(self, budget_s: float, started: float) -> None:
        self.budget_s = budget_s
        self._start = started

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    def remaining_s(self) -> float:
        return self.budget_s - self.elapsed_s()

    def at(self, elapsed_s: float) -> float:
        """That moment on `time.monotonic`'s clock."""
        return self._start + elapsed_s
