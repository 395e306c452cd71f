"""The plan of a study, for `--dry-run`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from autotune.show.report.text import minutes
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.why_nothing import nothing_expected
from autotune.units import gib


def print_plan(space: Space, first: Candidate, budget_s: float, predictor: Predictor) -> None:
    """Print the plan of a study over `space` with `budget_s` seconds."""
    searched = {name: values for name, values in space.axes.items() if len(values) > 1}
    total = math.prod(len(values) for values in space.axes.values())
    builds = "1 build" if len(space.builds) == 1 else f"{len(space.builds)} builds"
    builds += " of model and engine"
    console = Console(highlight=False)
    console.print("[bold]Searched[/]")
    console.print(_columns((name, _values(values)) for name, values in searched.items()))
    console.print(f"  {len(space.candidates)} of {total} candidates are valid, in {builds}\n")
    console.print("[bold]Fixed[/]")
    console.print(_columns((each.name, each.value, each.why) for each in space.fixed))
    console.print("\n[bold]First probe[/]")
    console.print(
        f"  {', '.join(f'{name} {getattr(first, name)}' for name in searched or space.axes)}"
    )
    if not space.workload.of_script:
        console.print(f"  {_expected(space, first, predictor)}", highlight=False)
    console.print(f"\nBudget: {minutes(budget_s)} (minutes:seconds)")
    console.print("Dry run: nothing was measured and nothing was written.")


def _expected(space: Space, first: Candidate, predictor: Predictor) -> str:
    """The expected memory before any probe: by formulas, without a trace."""
    if nothing := nothing_expected(space, predictor):
        return f"{nothing[0].upper()}{nothing[1:]}."
    limit = gib(space.limits.limit_bytes)
    return f"its peak is expected at about {gib(predictor.peak(first).bytes)} of {limit} allowed"


def _columns(rows: Iterable[tuple[str, ...]]) -> Padding:
    """`rows` below each other and indented; from the third column on they are dim."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(escape, row[:2]), *(f"[dim]{escape(text)}[/]" for text in row[2:]))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _values(values: tuple[Any, ...]) -> str:
    """The values of an axis: all if they are few, else the ends and their number."""
    if len(values) <= 12:
        return ", ".join(map(str, values))
    return f"{values[0]} to {values[-1]} ({len(values)} values)"
