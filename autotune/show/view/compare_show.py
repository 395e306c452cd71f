"""Studies side by side, on a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from autotune.show.report.text import paragraph, print_lines, printable
from autotune.show.view.compare import differences, frontiers, names, winners
from autotune.show.view.page import PageTable
from autotune.show.view.page.rendering import rendered
from autotune.show.view.study import Shown

TITLE = "Throughput against micro-batch"
CAPTION = (
    "The best build of every micro-batch at the depth and length of each study's winner, by the"
    " median of its trials and finals."
)
NOISE = "within the noise"
MEANS = f'"{NOISE}": the 95 % intervals of the two winners meet.'


def _tables(studies: Sequence[Shown]) -> list[PageTable]:
    columns = ["", *names(studies)]
    found = {"Winners": winners(studies), "What differs": differences(studies)}
    return [
        PageTable(caption, columns, [[name, *values] for name, values in facts])
        for caption, facts in found.items()
        if facts
    ]


def print_compared(console: Console, studies: Sequence[Shown]) -> None:
    """The same tables as on the page."""
    for found in _tables(studies):
        table = Table(title=found.caption, title_justify="left", title_style="bold", box=None,
                      pad_edge=False, padding=(0, 1), header_style="dim")  # fmt: skip
        for name in found.columns:
            table.add_column(printable(name, console), overflow="fold")
        for row in found.rows:
            table.add_row(*(printable(word, console) for word in row))
        console.print(table)
        console.print()
    if said := _remarks(studies):
        print_lines(console, *paragraph(said, console.width))


def _remarks(studies: Sequence[Shown]) -> str:
    near = any(value.startswith(NOISE) for _, values in winners(studies) for value in values)
    said = [MEANS] if near else []
    others = [study.name for study in studies if study.objective != studies[0].objective]
    if others:
        said.append(f"{', '.join(others)} had another objective than the one shown here.")
    return " ".join(said)


def compare_page(studies: Sequence[Shown]) -> str:
    """One file of HTML."""
    spec = frontiers(studies)
    return rendered(
        "compare.html.j2",
        {"charts": {"frontiers": spec} if spec else {}, "trials": [], "logs": {}},
        title=" and ".join(names(studies)),
        facts=[said] if (said := _remarks(studies)) else [],
        tables=_tables(studies),
        charts=[{"name": "frontiers", "title": TITLE, "caption": CAPTION}] if spec else [],
    )
