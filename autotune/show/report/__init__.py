"""What a study tells people while it runs and when it ends. One base class, `Reporter`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.result.best import Best
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from autotune.space.space import Space
from autotune.wire.stopping import Phase


class Reporter:
    """Hears of a study's events, and does nothing; `started` comes first."""

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        """The study begins; its clock runs from here."""

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        """An earlier run of the study ended with these trials and finals."""

    def probing(self, purpose: str, candidate: Candidate, until_s: float, slot: int = 0) -> None:
        """A trial begins in a `slot`; its purpose is that of its record. The part of the budget
        for this purpose ends `until_s` after the study began, at the latest."""

    def phase(self, phase: Phase, steps: int, slot: int = 0) -> None:
        """Phase of the probe in a slot, with the timed steps so far. Threads call this often: it
        must cost nothing."""

    def told(self, record: Record, incumbent: Record | None) -> None:
        """A trial ended; `incumbent` is the best one now."""

    def note(self, text: str) -> None:
        """A remark of one line, e.g. why the search stopped. Threads call this too."""

    def finished(self, best: Best, path: Path) -> None:
        """The study ended and wrote `best` to `path`, its best.json."""

    def close(self) -> None:
        """Give the terminal back. May be called at any time, and more than once."""

    def abandon(self) -> None:
        """Give the terminal back from within a signal handler; the process ends right after."""
