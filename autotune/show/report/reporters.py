"""The choice of a reporter for a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from autotune.show.report import Reporter
from autotune.show.report.console import console_for
from autotune.show.report.notebook import NotebookReporter
from autotune.show.report.terminal import LiveReporter, PlainReporter
from autotune.space.outcome import Objective

_LOG_WIDTH = 100
_NOTEBOOK_WIDTH = 80
"""Characters of a cell's output that a notebook shows without scrolling."""


def reporter_for(
    stream: TextIO,
    clock: Callable[[], float] = time.monotonic,
    objective: Objective = "flops",
) -> Reporter:
    """The reporter that suits `stream`, which may fail; `clock` gives the study's seconds."""
    if Console().is_jupyter:
        return NotebookReporter(console_for(stream, _NOTEBOOK_WIDTH), clock, objective)
    on_terminal = stream.isatty()
    console = console_for(stream, None if on_terminal else _LOG_WIDTH)
    if on_terminal and not console.is_dumb_terminal:
        return LiveReporter(console, clock, objective)
    return PlainReporter(console, clock, objective)
