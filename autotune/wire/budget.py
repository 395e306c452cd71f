"""The budget's clock, and the user's request to stop earlier."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class StopFlag:
    """Set by the first SIGINT, SIGTERM or SIGHUP. The second signal calls `kill` and exits.

    In a process that is not ours alone (`embedded`), e.g. a notebook's kernel, the second signal
    raises KeyboardInterrupt, and later ones are ignored while the study clears up. Only the main
    thread receives signals; in another thread nothing sets the flag.
    """

    def __init__(self, *, embedded: bool = False) -> None:
        self._embedded = embedded
        self._left = False
        self.signal: signal.Signals | None = None
        self.kill: Callable[[], None] = lambda: None
        heard = threading.current_thread() is threading.main_thread()
        self._previous = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            # nohup ignores them on purpose; a handler that is not Python's cannot be restored
            if heard and signal.getsignal(number) not in (signal.SIG_IGN, None)
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
        if self._left:
            return
        if self.signal is not None:
            self.kill()
            if self._embedded:
                self._left = True
                raise KeyboardInterrupt
            os._exit(128 + number)
        self.signal = signal.Signals(number)


class Clock:
    """The budget's clock. `started` is a reading of `now`: seconds from any fixed point."""

    def __init__(
        self, budget_s: float, started: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget_s = budget_s
        self._start = started
        self._now = now

    def go_on(self, spent_s: float, budget_s: float) -> None:
        """Count `spent_s` of earlier runs as elapsed, of `budget_s` in all."""
        self._start -= spent_s
        self.budget_s = budget_s

    @property
    def virtual_time(self) -> VirtualTime | None:
        """The virtual time that it counts; None if it counts real time."""
        return self._now if isinstance(self._now, VirtualTime) else None

    def elapsed_s(self) -> float:
        return self._now() - self._start

    def remaining_s(self) -> float:
        return self.budget_s - self.elapsed_s()

    def at(self, elapsed_s: float) -> float:
        """That moment on the scale of `now`."""
        return self._start + elapsed_s


class VirtualTime:
    """Stands in for `time.monotonic`: seconds that pass by `advance` alone."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def ahead(self, work: Callable[[], T]) -> tuple[T, float]:
        """The result of `work`, begun now, and its end. No time passes yet."""
        began = self._now
        try:
            return work(), self._now
        finally:
            self._now = began

    def pass_until(self, end: float) -> None:
        """Advance to `end`, unless that has passed."""
        self._now = max(self._now, end)
