"""The README's pictures, captured from the product.

    .venv/bin/python scripts/make_pictures.py

They show a replayed recording, so they are the same on every machine. Chromium draws the page
(apt-get install chromium).
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO
from unittest import mock

from rich.console import Console
from rich.text import Text

import autotune
from autotune.result.best import Best
from autotune.show.report import reporters
from autotune.show.report.terminal import LiveReporter
from autotune.space.outcome import Record
from autotune.wire.stopping import Phase

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "results" / "pictures"
GRID = "results/grids/cpu-2-ranks.csv"
WIDTH = 100
TRIALS_BEFORE = 9
"""The terminal is captured in the first start of a group after so many trials."""
LATER_S = 2.0
"""Seconds after that start begins: a recording's own clock jumps over it."""
OPTIONS = {"capacity": "800MiB", "seed": "1", "budget": "3m"}
PAGE_SIZE = (1280, 1510)
"""Pixels of the shown part of the report: the winner, and the first charts."""
MONOSPACE = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Captured(LiveReporter):
    """Prints the live lines once, and then only the result."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._later_s = 0.0
        super().__init__(console, lambda: clock() + self._later_s)
        self._told = 0

    def told(self, record: Record, incumbent: Record | None) -> None:
        super().told(record, incumbent)
        self._told += 1

    def phase(self, phase: Phase, steps: int, slot: int = 0) -> None:
        super().phase(phase, steps)
        if phase is Phase.BUILD and self._told >= TRIALS_BEFORE and not self._console.quiet:
            self._later_s = LATER_S
            self._console.print(self.drawn(), Text("\n...", "dim"))
            self._later_s = 0.0
            self._console.quiet = True

    def finished(self, best: Best, path: Path) -> None:
        self._console.quiet = False
        super().finished(best, path)


def terminal() -> bytes:
    """A study at a moment of its search, and its end."""
    # Without an interactive terminal rich draws no live lines, so they are printed on demand.
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_interactive=False,
        color_system="truecolor", highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip

    def reporter(stream: TextIO, clock: Callable[[], float], objective: object) -> Captured:
        return Captured(console, clock)

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(reporters, "reporter_for", reporter),
    ):
        autotune.tune(device=f"replay:{ROOT / GRID}", **OPTIONS, out="results/my-study")
    flags = " ".join(f"--{name} {value}" for name, value in OPTIONS.items())
    title = f"python -m autotune --device replay:{GRID} {flags}"
    return _without_network(console.export_svg(title=title)).encode()


def report() -> bytes:
    """The upper part of a study's page."""
    width, height = PAGE_SIZE
    with tempfile.TemporaryDirectory() as folder:
        study, picture = Path(folder, "my-study"), Path(folder, "page.png")
        with contextlib.redirect_stdout(io.StringIO()):
            autotune.tune(device=f"replay:{ROOT / GRID}", **OPTIONS, out=str(study))
        command = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder}/profile", f"--window-size={width},{height}",
            "--virtual-time-budget=20000", f"--screenshot={picture}",
            (study / "report.html").as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return picture.read_bytes()


def _without_network(svg: str) -> str:
    """`svg` in the reader's own fonts: rich names one on a server."""
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", MONOSPACE).replace("arial", "arial, sans-serif")


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for name, make in {"terminal.svg": terminal, "report.png": report}.items():
        picture = make()
        (PICTURES / name).write_bytes(picture)
        print(f"{name}: {len(picture) / 1000:.0f} kB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
