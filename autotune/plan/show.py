"""Plans on a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autotune.plan.answers import Solved
from autotune.plan.expected import LIKELY, Expected, Largest, Parts, Plan
from autotune.report.text import shown_axes, si
from autotune.space.axes import AXES
from autotune.units import gib

BARS = 5
"""Rows that are drawn."""
_STYLES = {
    "parameters": "blue", "gradients": "cyan", "optimizer": "magenta", "activations": "green",
    "logits": "yellow", "buffers": "red", "unused": "white",
    "outside": "bright_black",
}  # fmt: skip
_SIGNS = dict(zip(_STYLES, "PGOALBu.", strict=True))
"""What a bar is drawn with, so that it can be read without colours."""
_HEADS = {
    "parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ",
    "logits": "logits", "buffers": "buffer", "unused": "unused",
    "outside": "outside",
}  # fmt: skip
_GIB = 2**30
_ANY_WIDTH = 10_000
_MANY = 20
"""Values that are not listed any more."""


def print_table(console: Console, found: Plan, rows: Sequence[Largest], most: int) -> None:
    """What fits, one row for each build and length, and what would not."""
    _head(console, found)
    shown = list(rows[:most])
    table, parts = _table(found, shown), _parts(shown)
    if _width(console, table) + _width(console, parts) + 2 <= console.width:
        both = Table.grid(padding=(0, 2, 0, 0))
        both.add_row(table, parts)
        _print_whole(console, both)
    else:
        _print_whole(console, table)
        console.print("\nOf each peak, in GiB")
        _print_whole(console, _parts(shown, numbered=True))
    console.print(
        Text(
            f"micro: the largest micro_batch of {_looked_at(found)} that fits with a chance of"
            f" {LIKELY:.0%}, or else of 50%, or else the least; may: with one of 50%; -: not"
            " expected to fit; host: GiB of all ranks, the rest of one GPU",
            style="dim",
        )
    )
    if len(rows) > len(shown):
        console.print(f"  and {len(rows) - len(shown)} more rows: --rows {len(rows)}")
    drawn = [each.row for each in shown if each.row.may_fit][:BARS]
    print_bars(console, found, drawn or [each.row for each in shown[:1]])


def print_counts(
    console: Console,
    rows: Sequence[tuple[int, Expected | None, str]],
    card: str,
    *,
    speed_known: bool,
) -> None:
    """What to set, by number of GPUs."""
    found = [row for _, row, _ in rows if row is not None]
    axes = _axes_of(found)
    table = Table(box=None, pad_edge=False)
    speed = ["tokens/s"] if speed_known else []
    for name in ("GPUs", "micro", "accum", "global batch", *axes, "peak", "fits", *speed,
                 "sends a step"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for count, row, _ in rows:
        if row is None:
            table.add_row(str(count), Text("none", style="red"))
            continue
        c = row.candidate
        table.add_row(
            str(count), str(c.micro_batch), str(row.grad_accum),
            f"{row.global_batch} = {c.micro_batch} x {row.grad_accum} x {count}",
            *(str(getattr(c, name)) for name in axes.values()),
            f"{row.peak.bytes / _GIB:.1f} GiB", Text(f"{row.chance:.0%}", style=_colour(row)),
            *([_range(row.tokens_per_s)] if speed_known else []),
            _size(row.traffic_bytes) if count > 1 else "",
        )  # fmt: skip
    console.print(Text(f"What to set on {card}, by number of GPUs", style="bold"))
    _print_whole(console, table)
    for count, row, why in rows:
        if row is None:
            console.print(Text(f"  {count}: {why}"), soft_wrap=True)


def print_solved(console: Console, found: Plan, solved: Solved) -> None:
    row = solved.row
    if row is None:
        console.print(f"{solved.quantity}: nothing fits")
        return
    sign = f", {solved.bound}" if solved.bound else ""
    console.print(Text(f"{solved.quantity}: {solved.value}{sign}", style="bold"))
    console.print(f"  {_words(row)} on {row.gpus} GPU{'s' if row.gpus > 1 else ''}")
    speed = f", {_range(row.tokens_per_s)} tokens/s" if found.speed_known else ""
    host = f"; {gib(row.host_bytes)} of host memory" if row.host_bytes else ""
    console.print(f"  fits with a chance of {row.chance:.0%}{speed}{host}")
    print_bars(console, found, [row])


def print_bars(console: Console, found: Plan, rows: Sequence[Expected]) -> None:
    """What peaks are made of, as a share of the capacity, with a mark at the ceiling."""
    limits = found.space.limits
    wide = max(20, min(console.width - 30, 80))
    ceiling = round(wide * limits.ceiling)
    console.print()
    for row in rows:
        bar = Text()
        upto = 0.0
        for part in fields(Parts):
            upto += getattr(row.parts, part.name) / limits.capacity_bytes * wide
            more = min(wide, round(upto)) - len(bar)
            bar.append(_SIGNS[part.name] * more, style=_STYLES[part.name])
        bar.pad_right(wide - len(bar))
        bar = Text.assemble(bar[:ceiling], ("|", "bold red"), bar[ceiling:])
        bar.rstrip()
        console.print(Text.assemble(f"  {gib(row.peak.bytes):>10} ", bar), soft_wrap=True)
        console.print(Text(f"  {'':>10} {_words(row)}", style="dim"), soft_wrap=True)
    legend = [Text(f"{_SIGNS[name]} {name}", style=style) for name, style in _STYLES.items()]
    console.print(Text.assemble("  ", Text("  ").join(legend)))
    console.print(Text(f"  | the ceiling, {gib(limits.limit_bytes)} of"
                       f" {gib(limits.capacity_bytes)}", style="dim"))  # fmt: skip


def as_json(found: Plan, rows: Sequence[Expected], **more: Any) -> str:
    limits = found.space.limits
    body = {
        "gpus": found.gpus,
        "capacity_bytes": limits.capacity_bytes,
        "limit_bytes": limits.limit_bytes,
        "fixed": {
            each.name: each.value for each in found.space.fixed if each.name != "world_size"
        },
        "untraced": found.untraced,
        **more,
        "rows": [record(row) for row in rows],
    }
    return json.dumps(body, indent=2) + "\n"


def as_csv(rows: Sequence[Expected]) -> str:
    flat = [flattened(record(row)) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def record(row: Expected) -> dict[str, Any]:
    """One row as JSON types; sizes in bytes, times in seconds."""
    body = asdict(row)
    body["parts"] = {name: round(value) for name, value in body["parts"].items()}
    for name in ("step_s", "tokens_per_s"):
        body[name] = dict(zip(("low", "median", "high"), body[name], strict=True))
    return {"fits": row.fits, "may_fit": row.may_fit, **body}


def flattened(body: dict[str, Any], before: str = "") -> dict[str, Any]:
    """`body` with names such as peak_bytes for what is nested; a candidate's own stay."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, dict):
            found |= flattened(value, "" if name == "candidate" else f"{before}{name}_")
        else:
            found[f"{before}{name}"] = value
    return found


def _head(console: Console, found: Plan) -> None:
    fixed = {each.name: each.value for each in found.space.fixed}
    limits = found.space.limits
    said = [f"{name} {fixed[name]}"
            for name in ("model", "parameters", "task", "target_len", "lora", "dtype")
            if name in fixed]  # fmt: skip
    gpus = f"{found.gpus} x {fixed['device']}"
    allowed = f"{gib(limits.limit_bytes)} of {gib(limits.capacity_bytes)} a GPU allowed"
    console.print(Text(f"{', '.join(said)}; {gpus}, {allowed}", style="bold"), soft_wrap=True)


def _table(found: Plan, rows: Sequence[Largest]) -> Table:
    axes = {axis.label: axis.name for axis in shown_axes(found.space.axes)
            if axis.name != "micro_batch"
            and (len(found.space.axes.get(axis.name, ())) > 1 or not axis.quiet)}  # fmt: skip
    table = Table(box=None, pad_edge=False)
    for label in ("#", *axes, "micro", "may"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("peak GiB (90 %)", justify="right", no_wrap=True)
    table.add_column("fits", justify="right", no_wrap=True)
    if found.speed_known:
        table.add_column("tokens/s", justify="right", no_wrap=True)
    for number, each in enumerate(rows, 1):
        row, peak = each.row, each.row.peak
        interval = f"({peak.low_bytes / _GIB:.1f}-{peak.high_bytes / _GIB:.1f})"
        table.add_row(
            _number(number, each),
            *(str(getattr(row.candidate, name)) for name in axes.values()),
            str(row.candidate.micro_batch),
            "" if each.may is None else str(each.may),
            f"{peak.bytes / _GIB:.1f} {interval}",
            Text(f"{row.chance:.0%}", style=_colour(row)),
            *([_range(row.tokens_per_s)] if found.speed_known else []),
        )
    return table


def _looked_at(found: Plan) -> str:
    values = found.space.axes["micro_batch"]
    if len(values) < _MANY:
        return ",".join(map(str, values))
    return f"{values[0]} to {values[-1]}"


def _number(number: int, each: Largest) -> str:
    """Its place in the order of a study, if that would try it."""
    return str(number) if each.row.may_fit else "-"


def _parts(rows: Sequence[Largest], *, numbered: bool = False) -> Table:
    """What the peaks of these rows are made of, and what the host holds."""
    table = Table(box=None, pad_edge=False)
    if numbered:
        table.add_column("#", justify="right")
    for head in (*_HEADS.values(), "host"):
        table.add_column(head, justify="right", style="dim", no_wrap=True)
    for number, each in enumerate(rows, 1):
        parts = (getattr(each.row.parts, part.name) for part in fields(Parts))
        table.add_row(
            *([_number(number, each)] if numbered else []),
            *(f"{part / _GIB:.1f}" for part in parts), f"{each.row.host_bytes / _GIB:.0f}",
        )  # fmt: skip
    return table


def _width(console: Console, table: Table) -> int:
    """Characters that it needs."""
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum


def _print_whole(console: Console, table: Table) -> None:
    """Also where the console is narrower: better wrapped by it than cut."""
    narrow, console.width = console.width, max(console.width, _width(console, table))
    console.print(table)
    console.width = narrow


def _colour(row: Expected) -> str:
    return "green" if row.fits else "yellow" if row.may_fit else "red"


def _axes_of(rows: Sequence[Expected]) -> dict[str, str]:
    """Labels and names of the axes on which `rows` differ or say something."""
    values = {name: {getattr(row.candidate, name) for row in rows} for name in AXES}
    return {
        axis.label: axis.name for axis in AXES.values()
        if axis.name != "micro_batch"
        and (not axis.quiet or len(values[axis.name]) > 1 or values[axis.name] != {axis.plain})
    }  # fmt: skip


def _words(row: Expected) -> str:
    said = [
        f"{axis.label} {getattr(row.candidate, axis.name)}" for axis in AXES.values()
        if not axis.quiet or getattr(row.candidate, axis.name) != axis.plain
    ]  # fmt: skip
    return f"{', '.join(said)} ({row.engine})"


def _range(values: tuple[float, float, float]) -> str:
    return f"{si(values[0])}-{si(values[2])}"


def _size(size: float) -> str:
    return gib(round(size))
