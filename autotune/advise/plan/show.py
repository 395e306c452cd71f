"""Plans on a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autotune.advise.plan.answers import Answer, Solved, table
from autotune.advise.plan.expected import LIKELY, Expected, Largest, Plan
from autotune.show.report.text import columns, shown_axes, si
from autotune.space.axes import AXES
from autotune.space.space import LEFT_OUT, NO_LIMIT
from autotune.units import gib

BARS = 5
"""The most rows with bars."""
_PARTS = {
    "parameters": ("params", "P", "blue"), "gradients": ("grads", "G", "cyan"),
    "optimizer": ("optim", "O", "magenta"), "activations": ("activ", "A", "green"),
    "logits": ("logits", "L", "yellow"), "buffers": ("buffer", "B", "red"),
    "unused": ("unused", "u", "white"), "outside": ("outside", ".", "bright_black"),
}  # fmt: skip
"""For each part of a peak: heading, sign in a bar without colours, and colour."""
_GIB = 2**30
_ANY_WIDTH = 10_000
_BY = {"by": "weighed: its peak is that of a real rank on emulated GPUs; expected: by formulas"}
_MANY = 20
"""So many values are not listed any more."""
_HIGH_CEILING = 0.9


def print_answer(console: Console, found: Answer, most: int) -> None:
    """Print a plan, with at most `most` rows of a table."""
    if found.counts:
        _print_counts(console, found)
    elif found.solved is not None:
        _print_solved(console, found, found.solved)
    else:
        _print_table(console, found.plans[0], table(found.plans[0]), most)


def _print_table(console: Console, found: Plan, rows: Sequence[Largest], most: int) -> None:
    """Print one row for each build and length; first those that fit."""
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
    meanings = {
        "#": "1 is recommended, 2 the next to try; - is not expected to fit",
        "micro": f"largest of {_looked_at(found)} that fits with a chance of {LIKELY:.0%};"
        " if none does, the value under may; if there is none either, the smallest",
        "may": "largest that fits with a chance of 50%",
        **(_BY if _any_weighed(shown) else {}),
        "params...": "GiB of one GPU's peak; host: GiB of all ranks",
    }
    for name, meaning in meanings.items():
        console.print(Text(f"{name:10}{meaning}", style="dim"))
    above = _above_ceiling(found, shown)
    _notes(console, [*above, *_batch(found, [each.row for each in shown]), *_without([found])])
    if (more := len(rows) - len(shown)) > 0:
        chosen = "; weighed, one of them may be faster" if _any_weighed(shown) else ""
        console.print(f"  and {more} more row{'s' * (more > 1)}{chosen}: --rows {len(rows)}")
    drawn = [each.row for each in shown if each.row.may_fit][:BARS]
    _print_bars(console, found, drawn or [each.row for each in shown[:1]])


def _print_counts(console: Console, answer: Answer) -> None:
    axes, head = _axes_of(answer.rows), answer.plans[-1]
    speed = ["tokens/s"] if head.speed_known else []
    heads = ["GPUs", "micro", "accum", "global batch", *axes, "peak", "host", "fits", *speed,
             "GPU sends a step"]  # fmt: skip
    cells: list[list[str | Text]] = []
    for count, row in answer.counts.items():
        if isinstance(row, str):
            cells.append([str(count), Text("none", style="red")])
            continue
        c = row.candidate
        cells.append([
            str(count), str(c.micro_batch), str(row.grad_accum), _product(head, row),
            *(str(getattr(c, name)) for name in axes.values()),
            f"{row.peak.bytes / _GIB:.1f} GiB", f"{row.host_bytes / _GIB:.0f} GiB",
            Text("weighed" if row.weighed else f"{row.chance:.0%}", style=_colour(row)),
            *([_range(row.tokens_per_s)] if head.speed_known else []),
            gib(round(row.traffic_bytes)) if count > 1 else "",
        ])  # fmt: skip
    card = _fixed(head)["device"]
    title = f"What to set on {card}, by number of GPUs; {_allowed(head)}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    _print_whole(console, columns(heads, cells))
    said = (
        "peak: of a GPU; host: of all ranks; fits: the chance of it by formulas, or that it was"
        " weighed by a real rank on emulated GPUs"
    )
    console.print(Text(said, style="dim"), soft_wrap=True)
    nothing = [f"{count}: {why}" for count, why in answer.counts.items() if isinstance(why, str)]
    _notes(console, [*nothing, *_without(answer.plans)])


def _print_solved(console: Console, answer: Answer, solved: Solved) -> None:
    if not answer.rows:
        console.print(f"{solved.quantity}: nothing fits")
        return
    [found], [row] = answer.plans, answer.rows
    sign = f", {solved.bound}" if solved.bound else ""
    console.print(Text(f"{solved.quantity}: {solved.value}{sign}", style="bold"))
    console.print(f"  {_words(row)} on {row.gpus} GPU{'s' if row.gpus > 1 else ''}")
    if found.space.workload.global_batch is not None:
        console.print(f"  grad_accum {row.grad_accum}: global batch {_product(found, row)}")
    speed = f", {_range(row.tokens_per_s)} tokens/s" if found.speed_known else ""
    host = f"; {gib(row.host_bytes)} of host memory" if row.host_bytes else ""
    fits = (
        f"weighed: {gib(row.peak.bytes)}"
        if row.weighed
        else f"fits with a chance of {row.chance:.0%}"
    )
    console.print(f"  {fits}{speed}{host}")
    _notes(console, _without([found]))
    _print_bars(console, found, [row])


def _notes(console: Console, lines: Sequence[str]) -> None:
    """Print lines, indented and never cut."""
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _print_bars(console: Console, found: Plan, rows: Sequence[Expected]) -> None:
    """Print the parts of peaks as bars, as shares of the capacity, with a mark at the ceiling."""
    limits = found.space.limits
    wide = max(20, min(console.width - 30, 80))
    ceiling = round(wide * limits.ceiling)
    console.print("\nWhat peaks are made of; | is the ceiling", style="bold")
    for row in rows:
        bar = Text()
        upto = 0.0
        for name, (_, sign, style) in _PARTS.items():
            upto += getattr(row.parts, name) / limits.capacity_bytes * wide
            bar.append(sign * (min(wide, round(upto)) - len(bar)), style=style)
        bar.pad_right(wide - len(bar))
        bar = Text.assemble(bar[:ceiling], ("|", "bold red"), bar[ceiling:])
        bar.rstrip()
        console.print(Text.assemble(f"  {gib(row.peak.bytes):>10} ", bar), soft_wrap=True)
        console.print(Text(f"  {'':>10} {_words(row)}", style="dim"), soft_wrap=True)
    legend = [Text(f"{sign} {name}", style=style) for name, (_, sign, style) in _PARTS.items()]
    console.print(Text.assemble("  ", Text("  ").join(legend)))


def as_json(found: Answer) -> str:
    plan = found.plans[-1]
    limits = plan.space.limits
    more: dict[str, Any] = {}
    if found.counts:
        whys = {str(count): why for count, why in found.counts.items() if isinstance(why, str)}
        more = {"gpus": list(found.counts), "why_not": whys}
    elif found.solved is not None:
        more = {found.solved.quantity: found.solved.value}
    body = {
        "gpus": plan.gpus,
        "capacity_bytes": limits.capacity_bytes,
        "limit_bytes": limits.limit_bytes,
        "fixed": {name: value for name, value in _fixed(plan).items() if name != "world_size"},
        "untraced": plan.untraced,
        **more,
        "rows": [record(row) for row in found.rows],
    }
    return json.dumps(body, indent=2) + "\n"


def as_csv(found: Answer) -> str:
    return csv_of([record(row) for row in found.rows])


def csv_of(records: Sequence[dict[str, Any]]) -> str:
    """Records with the same names, in rows with a head."""
    flat = [flattened(each) for each in records]
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
    more = {"fits": row.fits, "may_fit": row.may_fit}
    return more | body | {"global_batch_tokens": row.global_batch_tokens}


def flattened(body: dict[str, Any], before: str = "") -> dict[str, Any]:
    """`body` with names such as peak_bytes for nested values; a candidate's names stay."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, dict):
            found |= flattened(value, "" if name == "candidate" else f"{before}{name}_")
        else:
            found[f"{before}{name}"] = value
    return found


def _head(console: Console, found: Plan) -> None:
    fixed = _fixed(found)
    said = [f"{name} {fixed[name]}"
            for name in ("model", "parameters", "task", "target_len", "lora", "dtype", "routing")
            if name in fixed]  # fmt: skip
    gpus = f"{found.gpus} x {fixed['device']}"
    line = f"{', '.join(said)}; {gpus}, {_allowed(found)}"
    console.print(Text(line, style="bold"), soft_wrap=True)


def _fixed(found: Plan) -> dict[str, str]:
    """Fixed values by name; with all values that are left out."""
    values: dict[str, list[str]] = {}
    for each in found.space.fixed:
        values.setdefault(each.name, []).append(each.value)
    return {name: "; ".join(each) for name, each in values.items()}


def _allowed(found: Plan) -> str:
    limits = found.space.limits
    said = f"{gib(limits.limit_bytes)} of {gib(limits.capacity_bytes)} a GPU"
    if limits.host_capacity_bytes < NO_LIMIT:
        said += f" and {gib(limits.host_limit_bytes)} of {gib(limits.host_capacity_bytes)} of host"
    return f"{said} allowed"


def _product(found: Plan, row: Expected) -> str:
    """The global batch in the requested unit, its factors, and the other unit."""
    made = f"{row.global_batch} = {row.candidate.micro_batch} x {row.grad_accum} x {row.gpus}"
    batch = found.space.workload.global_batch
    if batch is not None and batch.unit == "tokens":
        return f"{batch} ({made})"
    return f"{made} ({row.global_batch_tokens}tok)"


def _batch(found: Plan, rows: Sequence[Expected]) -> list[str]:
    """The requested global batch, also in the other unit; empty if there is none."""
    batch = found.space.workload.global_batch
    if batch is None:
        return []
    in_tokens = batch.unit == "tokens"
    others = [row.global_batch if in_tokens else row.global_batch_tokens for row in rows]
    least, most = min(others), max(others)
    other = f"{least}" if least == most else f"{least} to {most}"
    unit = "samples" if in_tokens else "tokens"
    return [
        f"global batch: {batch.amount} {batch.unit} a step ({other} {unit}) = micro"
        f"{' x seq' if in_tokens else ''} x accum x {found.gpus}"
    ]


def _without(plans: Sequence[Plan]) -> list[str]:
    """Values left out and why; for which numbers of GPUs, if that differs."""
    counts: dict[tuple[str, str], list[int]] = {}
    for found in plans:
        for each in found.space.fixed:
            if each.name == LEFT_OUT:
                why = each.why.removesuffix(" x ranks")  # if there are several
                counts.setdefault((why, each.value), []).append(found.gpus)
    whats: dict[str, list[str]] = {}
    for (why, what), on in counts.items():
        several = f" on {','.join(map(str, on))} GPU{'s' * (on != [1])}"
        whats.setdefault(why, []).append(what + several * (len(on) < len(plans)))
    return [f"without {'; '.join(each)}: {why}" for why, each in whats.items()]


def _table(found: Plan, rows: Sequence[Largest]) -> Table:
    axes = {axis.label: axis.name for axis in shown_axes(found.space.axes)
            if axis.name != "micro_batch"}  # fmt: skip
    accumulated = found.space.workload.global_batch is not None
    speed, some = found.speed_known, _any_weighed(rows)
    heads = ["#", *axes, "micro", *(["accum"] if accumulated else []), "may", "peak GiB (90 %)",
             *(["by"] if some else []), "fits", *(["tokens/s"] if speed else [])]  # fmt: skip

    def cells(number: int, each: Largest) -> list[str | Text]:
        row = each.row
        return [
            _number(number, each),
            *(str(getattr(row.candidate, name)) for name in axes.values()),
            str(row.candidate.micro_batch),
            *([str(row.grad_accum)] if accumulated else []),
            "" if each.may is None else str(each.may),
            _peak(row),
            *(["weighed" if row.weighed else "expected"] if some else []),
            Text(f"{row.chance:.0%}", style=_colour(row)),
            *([_range(row.tokens_per_s)] if speed else []),
        ]

    return columns(heads, (cells(*each) for each in enumerate(rows, 1)))


def _peak(row: Expected) -> str:
    """In GiB: the weighed one, or the expected one with its interval."""
    low, middle, high = (of / _GIB for of in (
        row.peak.low_bytes, row.peak.bytes, row.peak.high_bytes
    ))  # fmt: skip
    if low == high:
        return f"{middle:.1f}"
    return "out of memory" if row.weighed else f"{middle:.1f} ({low:.1f}-{high:.1f})"


def _above_ceiling(found: Plan, rows: Sequence[Largest]) -> list[str]:
    """The gain of a higher ceiling for rows that fit the card; empty without one."""
    limits = found.space.limits
    allowed = _HIGH_CEILING * limits.capacity_bytes
    near = [each.row for each in rows if not each.row.may_fit
            and each.row.limited_by == "device" and each.row.peak.bytes <= allowed]  # fmt: skip
    if not near:
        return []
    few = f"{len(near)} of the rows marked - fit{'s' * (len(near) == 1)}"
    return [f"{few} the card, but not the ceiling of {limits.ceiling:.0%}: --ceiling 90%"]


def _any_weighed(rows: Sequence[Largest]) -> bool:
    return any(each.row.weighed for each in rows)


def _looked_at(found: Plan) -> str:
    values = sorted({c.micro_batch for c in found.space.candidates})
    if len(values) < _MANY:
        return ",".join(map(str, values))
    return f"{values[0]} to {values[-1]}"


def _number(number: int, each: Largest) -> str:
    """Its place in a study's order of candidates; "-" if a study would not try it."""
    return str(number) if each.row.may_fit else "-"


def _parts(rows: Sequence[Largest], *, numbered: bool = False) -> Table:
    """The parts of these rows' peaks, and the host's memory."""
    heads = [*(["#"] if numbered else []), *(head for head, _, _ in _PARTS.values()), "host"]
    cells = (
        [
            *([_number(number, each)] if numbered else []),
            *(f"{getattr(each.row.parts, name) / _GIB:.1f}" for name in _PARTS),
            f"{each.row.host_bytes / _GIB:.0f}",
        ]
        for number, each in enumerate(rows, 1)
    )
    return columns(heads, cells, style="dim")


def _width(console: Console, table: Table) -> int:
    """Width of the whole table, in characters."""
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum


def _print_whole(console: Console, table: Table) -> None:
    """Print all columns. A narrower console wraps the lines."""
    narrow, console.width = console.width, max(console.width, _width(console, table))
    console.print(table)
    console.width = narrow


def _colour(row: Expected) -> str:
    return "green" if row.fits else "yellow" if row.may_fit else "red"


def _axes_of(rows: Sequence[Expected]) -> dict[str, str]:
    """Labels and names of axes on which `rows` differ, or are not plain."""
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
