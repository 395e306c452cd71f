"""Reports of a study while it runs and at its end. `Reporter` is the base class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.result.best import Best
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record
from autotune.space.space import Space
from autotune.wire.stopping import Phase


class Reporter:
    """Gets a study's events, and does nothing; `started` comes first."""

    def started(self, space: Space, budget_s: float, folder: Path) -> None:
        """The study begins; its clock runs from here."""

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        """An earlier run of the study left these trials and finals."""

    def probing(self, purpose: str, candidate: Candidate, until_s: float, slot: int = 0) -> None:
        """A trial begins in a `slot`; it ends at most `until_s` after the study began."""

    def phase(self, phase: Phase, steps: int, slot: int = 0) -> None:
        """The phase of a slot's probe, and its timed steps. Called often by threads: be cheap."""

    def told(self, record: Record, incumbent: Record | None) -> None:
        """A trial ended; `incumbent` is the best one now."""

    def note(self, text: str) -> None:
        """A remark of one line, e.g. why the search stopped. Threads call this, too."""

    def finished(self, best: Best, path: Path) -> None:
        """The study ended and wrote `best` to `path`, its best.json."""

    def close(self) -> None:
        """Give the terminal back. May be called at any time, and more than once."""

    def abandon(self) -> None:
        """Give the terminal back in a signal handler, right before the process ends."""
