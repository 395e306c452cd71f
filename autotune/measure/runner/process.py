"""A rank's process, as its watcher sees it."""

from __future__ import annotations

import signal
from typing import Protocol


class RankProcess(Protocol):
    """A process, on whatever machine."""

    pid: int

    def exit_code(self) -> int | None:
        """Negative for a signal, None while it runs."""

    def lives(self) -> bool:
        """Whether a process of its session, maybe a killed one, still holds memory."""

    def limit_log(self) -> str:
        """Keep its log small; returns a note the first time."""

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to every process of its session."""

    def reap(self) -> None:
        """Collect it, once it has ended or been killed, and its temporary files."""


def ended(code: int) -> str:
    """How a process with that exit code ended, in words; negative for a signal."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"left with exit code {code}"
