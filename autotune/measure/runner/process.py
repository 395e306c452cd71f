"""A rank's process, as whoever watches it sees it."""

from __future__ import annotations

import signal
from typing import Protocol


class RankProcess(Protocol):
    """Wherever it runs."""

    pid: int

    def exit_code(self) -> int | None:
        """Negative for a signal, None while it runs."""
        ...

    def limit_log(self) -> str:
        """Keep its log small; what to tell of that, the first time."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to every process of its session."""
        ...

    def reap(self) -> None:
        """Collect it, once it has ended or been killed, and its temporary files."""
        ...
