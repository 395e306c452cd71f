"""Studies side by side: winners, throughput by micro-batch and differences, as text and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.result.best import Best
from autotune.show.report.objective import SCALES, interval, of_objective
from autotune.show.report.text import minutes, paragraph, print_lines, printable, si
from autotune.show.view.charts.vega import Spec, chart, powers, quantity
from autotune.show.view.page import PageTable
from autotune.show.view.page.rendering import rendered
from autotune.show.view.study import Shown, flat
from autotune.space.axes import AXES
from autotune.space.outcome import Verdict
from autotune.units import gib

TITLE = "Throughput against micro-batch"
CAPTION = (
    "The best build of every micro-batch at the winner's depth and length, by the median of its"
    " trials and finals."
)
NOISE = "within the noise"
MEANS = f'"{NOISE}": the 95 % intervals of the two winners meet.'


def names(studies: Sequence[Shown]) -> list[str]:
    """Names of studies: those of their folders, or paths if these are the same."""
    short = [study.name for study in studies]
    return [
        name if short.count(name) == 1 else str(study.folder.path)
        for study, name in zip(studies, short, strict=True)
    ]


def winners(studies: Sequence[Shown]) -> list[tuple[str, list[str]]]:
    """The result of each study, by the objective of the first: name, and a value of each."""
    first = studies[0]
    found = [study.best for study in studies]
    axes = [
        name for name, axis in AXES.items()
        if any(best is not None and getattr(best.config, name) != axis.plain for best in found)
    ]  # fmt: skip
    facts: dict[str, Callable[[Best], str]] = {
        **{
            AXES[name].label: partial(lambda name, best: str(getattr(best.config, name)), name)
            for name in axes
        },
        "ranks": lambda best: f"{best.config.world_size}{best.config.on_nodes}",
        "data parallel": lambda best: str(best.config.replicas),
        first.unit: lambda best: si(of_objective(best.measured, first.objective)),
        f"against {names(studies)[0]}": lambda best: (
            "" if first.best is None or best is first.best else against(best, first.best, first)
        ),
        "tokens/s": lambda best: si(best.measured.tokens_per_s),
        "peak": lambda best: gib(best.measured.peak_bytes.device),
        "of capacity": lambda best: f"{best.measured.share_of_capacity:.0%}",
        "confirmed": lambda best: "yes" if best.confirmed else "no",
    }
    told = [
        (name, ["" if best is None else fact(best) for best in found])
        for name, fact in facts.items()
    ]
    limits, lacks = [study.limits for study in studies], [study.lack for study in studies]
    return [
        *told,
        *([("no result", lacks)] if any(lacks) else []),
        ("ceiling", [f"{each.ceiling:.0%} of {gib(each.capacity_bytes)}" for each in limits]),
        ("took", [minutes(study.elapsed_s) for study in studies]),
        (
            "trials",
            [str(sum(each.counts.values()) - each.counts[Verdict.SKIPPED]) for each in studies],
        ),
    ]


def against(best: Best, other: Best, first: Shown) -> str:
    """The gain of `best` over `other`; "within the noise" if their intervals overlap."""
    ours, theirs = (interval(each.measured, first.objective) for each in (best, other))
    if not all((*ours, *theirs)):
        return "not measured"
    change = ours[1] / theirs[1] - 1
    if ours[0] <= theirs[2] and theirs[0] <= ours[2]:
        return f"{NOISE} ({change:+.1%})"
    return f"{change:+.1%}"


def differences(studies: Sequence[Shown]) -> list[tuple[str, list[str]]]:
    """Options, devices and software that differ: name, and values."""
    known = []
    for made in (study.manifest for study in studies):
        options = {key: value for key, value in made.options.items() if value is not None}
        known.append(dict(flat(made.fingerprint | options)))
        known[-1].pop("out", None)
    every = dict.fromkeys(name for each in known for name in each)
    found = {name: [str(each.get(name, "")) for each in known] for name in every}
    return [(name, values) for name, values in found.items() if len(set(values)) > 1]


def frontiers(studies: Sequence[Shown]) -> Spec | None:
    """The best of every micro_batch at each winner's depth and length, one line per study."""
    first = studies[0]
    found = []
    for study, name in zip(studies, names(studies), strict=True):
        for micro_batch, row in _best_of_each(study, SCALES[first.objective][0]).items():
            found.append({"study": name, "micro_batch": micro_batch, **row})
    if not found:
        return None
    x = powers("micro_batch", "micro-batch", [row["micro_batch"] for row in found])
    y = quantity("value", first.unit, zero=True, format="~s")
    colour = {"field": "study", "type": "nominal", "title": "Study", "sort": names(studies)}
    told = [{"field": "study"}, {"field": "micro_batch"}, {"field": "build"},
            {"field": "value", "title": first.unit, "format": ".3s"}]  # fmt: skip
    return chart(
        {"mark": {"type": "line", "strokeWidth": 2, "tooltip": None},
         "encoding": {"x": x, "y": y, "color": colour}},
        {"mark": {"type": "point", "filled": True, "size": 60},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told}},
        data=found,
    )  # fmt: skip


def _best_of_each(study: Shown, column: str) -> dict[int, dict[str, Any]]:
    if study.best is None:
        return {}
    trials, config = study.measured, study.best.config
    cell = trials[(trials["depth"] == config.depth) & (trials["seq_len"] == config.seq_len)]
    medians = cell.groupby(["micro_batch", "build"])[column].median().reset_index()
    best = medians.dropna().sort_values(column).drop_duplicates("micro_batch", keep="last")
    return {
        int(row["micro_batch"]): {"value": float(row[column]), "build": str(row["build"])}
        for row in best.sort_values("micro_batch").to_dict("records")
    }


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
    spec = frontiers(studies)
    return rendered(
        "compare.html.j2",
        {"charts": {"frontiers": spec} if spec else {}, "trials": [], "logs": {}},
        title=" and ".join(names(studies)),
        facts=[said] if (said := _remarks(studies)) else [],
        tables=_tables(studies),
        charts=[{"name": "frontiers", "title": TITLE, "caption": CAPTION}] if spec else [],
    )
