"""The README's pictures: what the product shows, captured.

    .venv/bin/python scripts/make_pictures.py

They are of a replayed recording, so that they are the same wherever they are made.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO
from unittest import mock

from rich.console import Console
from rich.text import Text

import autotune
from autotune.outcome import Record
from autotune.report import reporters
from autotune.report.terminal import LiveReporter
from autotune.result.best import Best
from autotune.wire.stopping import Phase

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "results" / "pictures"
GRID = "results/grids/cpu-2-ranks.csv"
WIDTH = 100
TRIALS_BEFORE = 9
"""The terminal is captured at the first start of a group after so many trials,"""
LATER_S = 2.0
"""so long after it began: a recording's own clock jumps over it."""
MONOSPACE = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Captured(LiveReporter):
    """Prints the live lines once, and from then on nothing but the result."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._later_s = 0.0
        super().__init__(console, lambda: clock() + self._later_s)
        self._told = 0

    def told(self, record: Record, incumbent: Record | None) -> None:
        super().told(record, incumbent)
        self._told += 1

    def phase(self, phase: Phase, steps: int) -> None:
        super().phase(phase, steps)
        if phase is Phase.BUILD and self._told >= TRIALS_BEFORE and not self._console.quiet:
            self._later_s = LATER_S
            self._console.print(self.drawn(), Text("\n...", "dim"))
            self._later_s = 0.0
            self._console.quiet = True

    def finished(self, best: Best, path: Path) -> None:
        self._console.quiet = False
        super().finished(best, path)


def terminal() -> str:
    """A study at a moment of its search, and its end."""
    # Where nobody interacts, rich draws no live lines: they are printed when they are wanted.
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_interactive=False,
        color_system="truecolor", highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip

    options = {"capacity": "800MiB", "seed": "1", "budget": "3m"}

    def reporter(stream: TextIO, clock: Callable[[], float]) -> Captured:
        return Captured(console, clock)

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(reporters, "reporter_for", reporter),
    ):
        autotune.tune(device=f"replay:{ROOT / GRID}", **options, out="results/my-study")
    flags = " ".join(f"--{name} {value}" for name, value in options.items())
    title = f"python -m autotune --device replay:{GRID} {flags}"
    return _without_network(console.export_svg(title=title))


def _without_network(svg: str) -> str:
    """`svg` in the reader's own fonts: rich names one that is on a server."""
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", MONOSPACE).replace("arial", "arial, sans-serif")


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for name, make in {"terminal.svg": terminal}.items():
        picture = make()
        (PICTURES / name).write_text(picture, encoding="utf-8")
        print(f"{name}: {len(picture) / 1000:.0f} kB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
