"""Words and numbers to show, and their layout on a console."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.space.axes import AXES
from autotune.space.outcome import Verdict
from autotune.wire.settings import Axis

PROSE_WIDTH = 100
"""The most characters of a line of sentences: longer ones are hard to read."""


def shown_axes(values: Mapping[str, Collection[Any]], *, of_script: bool = False) -> list[Axis]:
    """The axes to show for these `values`: a script may lack some, one token has no length."""
    return [
        axis for name, axis in AXES.items()
        if len(values.get(name, ())) > 1
        or ((name == "micro_batch" if of_script else not axis.quiet)
        and not (name == "seq_len" and set(values.get(name, ())) == {1}))
    ]  # fmt: skip


def columns(heads: Sequence[str], rows: Iterable[Sequence[str | Text]], **style: Any) -> Table:
    """A table of right-aligned cells; none is cut."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True, **style)
    for row in rows:
        table.add_row(*row)
    return table


def print_lines(console: Console, *lines: Text) -> None:
    """Print every line as it is: it is fitted already, or a path, which must stay whole."""
    console.print(Text("\n").join(lines), soft_wrap=True)


def paragraph(text: str, width: int, label: str = "", style: str = "") -> list[Text]:
    """`text` wrapped beside `label`, which is in `style`."""
    folded = textwrap.wrap(
        text, min(width, PROSE_WIDTH), initial_indent=label, subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )  # fmt: skip
    lines = [Text(line) for line in folded]
    if lines:
        lines[0].stylize(style, 0, len(label))
    return lines


def wrapped(parts: Sequence[str], width: int) -> list[str]:
    """`parts` in lines of at most `width`; a part that fits in a line is not broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines += textwrap.wrap(part, width, break_on_hyphens=False)
    return lines


def bar(shares: Sequence[float], wide: int, console: Console) -> Text:
    """A bar of `wide` characters for the budget. Its parts are the search, the finals, the rest,
    and the part that is kept for finals. `shares` are the ends of the first three."""
    searched, spent, until = (min(wide, round(share * wide)) for share in shares)
    full, finals, rest = ("=", "#", "-") if console.options.ascii_only else ("█", "▓", "░")
    return Text.assemble(
        (full * searched, "cyan"),
        (finals * (spent - searched), "green"),
        (rest * (until - spent), "dim"),
        (rest * (wide - max(until, spent)), "dim green"),
    )


def counts_text(counts: dict[Verdict, int]) -> str:
    """Trials by verdict: "23 (20 ok, 3 oom)"."""
    named = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts.get(verdict)]
    return f"{sum(counts.values())} ({', '.join(named)})" if named else "none yet"


def si(value: float, unit: str = "") -> str:
    """`value` with three digits and a decimal prefix: "12.3k", "1.21 TFLOP/s"."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    scaled = float(f"{value:.3g}")  # before the prefix is chosen: 999.9 is 1.00k
    while scaled >= 1000 and len(prefixes) > 1:
        scaled /= 1000
        prefixes.pop(0)
    digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
    return f"{scaled:.{digits}f}{' ' if unit else ''}{prefixes[0]}{unit}"


def minutes(seconds: float) -> str:
    """Minutes and seconds, even above an hour: "0:07", "90:00"."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def visible(text: str) -> str:
    """`text` with "?" for control characters and invisible ones."""
    return "".join(c if c.isprintable() else "?" for c in text)


def printable(text: str, console: Console) -> str:
    """`text` with "?" for characters that `console` cannot show."""
    return visible(text).encode(console.encoding, "replace").decode(console.encoding)
