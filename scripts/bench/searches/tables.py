"""The tables of many searches, with the promises, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from shared import table, yes

from autotune.space.choices import SAMPLER, SAMPLERS
from searches.rules import RULES

PROBES = (4, 6, 8, 12, 20)
MINUTES = (0.5, 1.0, 2.0)
BUDGETS = (1.0, 3.0, 10.0)
"""Budgets of whole studies, in minutes."""
PROMISED = 3.0
"""The budget with a promise."""
METHODS = (*SAMPLERS, *RULES)
"""Methods in the order of the columns."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of one search."""

    method: str
    regrets: dict[int, float]
    """Regret after so many probes."""
    by_minute: dict[float, float]
    lost: float
    """Share of its probes that were lost to memory."""
    probes: int
    errors: tuple[float, ...]
    """Errors of predicted peaks, after the fourth probe."""


@dataclass(frozen=True)
class Whole:
    """The result of a whole study of the default sampler."""

    minutes: float
    """Its budget."""
    regret: float
    """Regret of its result; 1 without one."""
    lost: float
    """Share of its probes that were lost to memory, finals included."""
    over: bool
    """Whether another measurement of its result was over the ceiling."""


def results(studies: Sequence[Whole]) -> str:
    """Regret of the results of studies, by budget."""
    head = (
        "budget | result: regret, % (median / 90th percentile) | nothing found"
        " | lost to memory, finals included | over the ceiling in another measurement"
    )
    return table(
        head,
        (
            (
                f"{minutes:g} min", percent(of["regret"]),
                f"{(of['regret'] == 1.0).sum()} of {len(of)}", f"{of['lost'].mean():.1%}",
                f"{of['over'].sum()} of {len(of)}",
            )
            for minutes, of in pd.DataFrame(studies).groupby("minutes")
        ),
    )  # fmt: skip


def _by_method(searches: Sequence[Search]) -> Iterator[tuple[str, list[Search]]]:
    for method in METHODS:
        if mine := [each for each in searches if each.method == method]:
            yield method, mine


def percent(values: Sequence[float] | pd.Series[float]) -> str:
    """Median and 90th percentile."""
    return f"{100 * np.median(values):.1f} / {100 * np.quantile(values, 0.9):.1f}"


def regret_table(searches: Sequence[Search], floor: Sequence[float]) -> str:
    """`floor` has the oracle's regrets."""
    of = dict(_by_method(searches))

    def row(what: str, cell: Callable[[list[Search]], str]) -> list[str]:
        return [what, *map(cell, of.values())]

    def after(count: int) -> Callable[[list[Search]], str]:
        return lambda mine: percent([each.regrets[count] for each in mine])

    def within(minutes: float) -> Callable[[list[Search]], str]:
        return lambda mine: percent([each.by_minute[minutes] for each in mine])

    def lost(mine: list[Search]) -> str:
        return f"{100 * np.mean([each.lost for each in mine]):.0f} %"

    def stopped(mine: list[Search]) -> str:
        return f"{np.median([each.probes for each in mine]):.0f}"

    rows = [
        *(row(f"after {count} probes", after(count)) for count in PROBES),
        *(row(f"after {minutes:g} virtual minutes", within(minutes)) for minutes in MINUTES),
        row("probes lost to memory", lost),
        row(f"probes until it stopped by itself, at most {max(PROBES)}", stopped),
        row("searches", lambda mine: str(len(mine))),
    ]
    lines = [table(" | ".join(["regret, % (median / 90th percentile)", *of]), rows), ""]
    errors = [error for each in of.get(SAMPLER, []) for error in each.errors]
    if errors:
        lines.append(
            f"After four probes {SAMPLER} predicts peaks to {np.median(errors):.1%} (median)."
        )
    lines.append(
        f"Noise floor (an oracle with one measurement of every candidate): {percent(floor)}."
    )
    return "\n".join(lines)


def judged_apart(searches: Sequence[Search], floor: Sequence[float]) -> str:
    """Searches and an oracle, judged by measurements that they cannot draw."""
    after = ", ".join(
        f"after {count} probes {percent([each.regrets[count] for each in searches])}"
        for count in PROBES
    )
    middle = 100 * float(np.median(floor))
    return (
        f"Judged by measurements that it does not draw: {SAMPLER} {after}; the oracle {middle:.1f}"
        f" (median of {len(floor)})."
    )


def promises(searches: Sequence[Search], studies: Sequence[Whole], floor: Sequence[float]) -> str:
    """The promises of the default sampler and its results; empty if it did not run."""
    of = dict(_by_method(searches))
    if SAMPLER not in of:
        return ""

    def at(count: int, quantile: float, method: str = SAMPLER) -> float:
        return float(np.quantile([each.regrets[count] for each in of[method]], quantile))

    middle, upper = float(np.median(floor)), float(np.quantile(floor, 0.9))
    lost = float(np.mean([each.lost for each in of[SAMPLER]]))
    promised = [each for each in studies if each.minutes == PROMISED]
    regrets = [each.regret for each in promised]
    of_result = f"of the result after {PROMISED:g} min"
    rows = [
        ("median regret after 6 probes", 0.05, at(6, 0.5)),
        ("median regret after 12 probes", middle + 0.01, at(12, 0.5)),
        ("90th percentile after 12 probes", max(0.06, upper + 0.01), at(12, 0.9)),
        ("probes lost to memory", 0.08, lost),
        (f"median regret {of_result}", max(0.015, middle + 0.005), float(np.median(regrets))),
        (f"90th percentile {of_result}", max(0.065, upper + 0.01),
         float(np.quantile(regrets, 0.9))),
        (f"lost to memory in {PROMISED:g} min, finals included", 0.08,
         float(np.mean([each.lost for each in promised]))),
        ("studies that found nothing", 0.0, float(np.mean([r == 1.0 for r in regrets]))),
    ]  # fmt: skip
    behind = [
        f"{name} after {count}"
        for count in PROBES
        for name in sorted(of.keys() - {SAMPLER})
        if at(count, 0.5, name) < at(count, 0.5)
    ]
    shown = [(what, f"{most:.1%}", f"{found:.1%}", yes(found <= most))
             for what, most, found in rows]  # fmt: skip
    ahead = ("ahead of every other column", "", ", ".join(behind) or "all", yes(not behind))
    return table("promise | at most | measured | held", [*shown, ahead])


def plot(searches: dict[str, list[Search]], floors: dict[str, list[float]], path: Path) -> None:
    """Median regret over probes, one panel a grid, by the grids' names."""
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    figure, axes = plt.subplots(1, len(searches), figsize=(6 * len(searches), 4), squeeze=False)
    for axis, (name, of_grid) in zip(axes[0], searches.items(), strict=True):
        for method, mine in _by_method(of_grid):
            middle = [100 * np.median([each.regrets[n] for each in mine]) for n in PROBES]
            width = 2.5 if method == SAMPLER else 1.0
            axis.plot(PROBES, middle, marker="o", markersize=3, linewidth=width, label=method)
        axis.axhline(100 * np.median(floors[name]), color="grey", linestyle=":", label="floor")
        axis.set(title=name, xlabel="probes", ylabel="median regret, %", xticks=PROBES)
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
