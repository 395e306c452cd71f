"""The charts of a study: Vega-Lite specifications, for pages and pictures.

One file and one row of `CHARTS` each. A chart is a pure function of a study; it is None without
data. Most draw the data named `TRIALS`, which all charts of a page share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.show.view.charts.cells import cells
from autotune.show.view.charts.finals import finals
from autotune.show.view.charts.memory import memory
from autotune.show.view.charts.peak import peak
from autotune.show.view.charts.phases import phases
from autotune.show.view.charts.predicted import predicted
from autotune.show.view.charts.throughput import throughput
from autotune.show.view.charts.time import time
from autotune.show.view.charts.vega import Spec
from autotune.show.view.study import Shown


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str
    draw: Callable[[Shown], Spec | None]


CHARTS = {
    "throughput": Chart(
        "Throughput against micro-batch",
        "One line per build. A ring marks the frontier: the largest micro-batch of a build that"
        " fitted. Crosses at the bottom did not fit or did not run. Diamonds are finals.",
        throughput,
    ),
    "memory": Chart(
        "Memory against tokens per micro-step",
        "Points are measured peaks. Thin bars are the 95 % intervals predicted before each"
        " probe. Crosses did not fit.",
        memory,
    ),
    "peak": Chart(
        "Parts of the peak memory",
        "The winner of each depth and length. Model state is computed from the number of"
        " parameters. The rest is the measured peak beyond it.",
        peak,
    ),
    "cells": Chart(
        "The winner of each depth and length",
        "Darker is better. Confirmed winners were measured again in fresh processes, and agreed."
        " The speed of others may be high by chance.",
        cells,
    ),
    "time": Chart(
        "Trials over time",
        "Each trial at the time it ended; diamonds are finals. The line is the best single"
        " measurement of the search so far.",
        time,
    ),
    "phases": Chart(
        "Where the budget went",
        "Wall-clock seconds by activity.",
        phases,
    ),
    "predicted": Chart(
        "Predicted against measured peaks",
        "Points on the line were predicted exactly. Bars are 95 % intervals.",
        predicted,
    ),
    "finals": Chart(
        "Finals",
        "Each round in a fresh process, with the 95 % interval of its median step.",
        finals,
    ),
}


def drawn(study: Shown) -> dict[str, Spec]:
    """The charts of `study` with data, by name."""
    specs = {name: chart.draw(study) for name, chart in CHARTS.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}
