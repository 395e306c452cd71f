"""Reports below the cell of a notebook: one bar, which overwrites itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune.result.best import Best
from autotune.show.report.terminal import PlainReporter
from autotune.show.report.text import bar, counts_text, minutes
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Record, Verdict
from autotune.wire.stopping import Phase

_EVERY_S = 0.5
"""Seconds between two bars: a notebook keeps all output of a cell, overwritten bars, too."""


class NotebookReporter(PlainReporter):
    """A bar instead of a line per trial. A notebook only supports the carriage return."""

    def __init__(
        self, console: Console, clock: Callable[[], float], objective: Objective = "flops"
    ) -> None:
        super().__init__(console, clock, objective)
        self._counts: Counter[Verdict] = Counter()
        self._incumbent: Record | None = None
        self._drawn_s: float | None = None
        """Time of the last bar; None if there is none to overwrite."""
        self._one_at_a_time = threading.RLock()

    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None:
        self._counts = Counter(record.outcome.verdict for record in records)
        self._incumbent = incumbent

    def probing(self, purpose: str, candidate: Candidate, until_s: float, slot: int = 0) -> None:
        self._draw()

    def phase(self, phase: Phase, steps: int, slot: int = 0) -> None:
        if self._drawn_s is None or self._clock() - self._drawn_s >= _EVERY_S:
            self._draw()

    def told(self, record: Record, incumbent: Record | None) -> None:
        self._counts[record.outcome.verdict] += 1
        self._incumbent = incumbent
        self._draw()

    def finished(self, best: Best, path: Path) -> None:
        self.close()
        super().finished(best, path)

    def close(self) -> None:
        if self._drawn_s is not None:
            self._console.print()
            self._drawn_s = None

    def _print(self, *lines: Text) -> None:
        """Keep the bar, and go on below it."""
        with self._one_at_a_time:
            self.close()
            super()._print(*lines)

    def _draw(self) -> None:
        budget_s, elapsed_s = self._known.budget_s, self._clock()
        share = min(1.0, elapsed_s / budget_s)
        best = self._incumbent and self._incumbent.outcome.measurement
        line = Text.assemble(
            bar([share, share, 1.0], max(10, self._console.width - 40), self._console),
            f" {minutes(elapsed_s)} of {minutes(budget_s)}",
            f"  best {self._known.rate(best)}" if best else "",
            f"  trials {counts_text(self._counts)}",
        )
        line.truncate(self._console.width, pad=True)
        with self._one_at_a_time:
            self._console.print(line, end="\r", soft_wrap=True)
            self._drawn_s = elapsed_s
