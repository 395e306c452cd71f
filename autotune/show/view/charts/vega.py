"""Common parts of the charts: their data, and blocks of Vega-Lite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.show.view.study import Shown
from autotune.space.outcome import Verdict

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
TRIALS = "trials"
DIGITS = 6
"""Significant digits of a drawn number."""

VERDICTS = {
    Verdict.OK: ("#0072b2", "circle"),
    Verdict.PRUNED: ("#8c8c8c", "circle"),
    Verdict.OVER_CEILING: ("#e69f00", "triangle-up"),
    Verdict.OVER_HOST_CEILING: ("#b07800", "triangle-down"),
    Verdict.OOM: ("#d55e00", "cross"),
    Verdict.UNSUPPORTED: ("#cc79a7", "square"),
    Verdict.HUNG: ("#7b3294", "diamond"),
    Verdict.CRASHED: ("#a50026", "stroke"),
}
"""Colour and shape of each verdict. Source: Okabe and Ito, Color Universal Design (2008)."""
PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#7b3294"]
WIDTH = "(containerSize()[0] || 620)"
"""Pixels of the width of a chart, as an expression: of a page's place, or of a picture."""
NARROW, LINE = 480, 15
"""Pixels of a narrow chart's width, and of a line of text."""
CONFIG: Spec = {
    "font": "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif",
    "range": {"category": PALETTE},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "orient": "bottom",
        "columns": {"expr": f"max(1, floor({WIDTH} / 200))"},
        "labelLimit": 300,
    },
    "view": {"stroke": None},
}
"""The configuration of all charts; the page sets colours of text."""
_FIELDS = (
    "number", "kind", "candidate", "cell", "build", "micro_batch", "tokens_per_micro_step",
    "verdict", "value", "value_low", "value_high", "tokens_per_s", "peak_device_gib",
    "predicted_peak_gib", "predicted_low_gib", "predicted_high_gib", "ended_s", "reason",
)  # fmt: skip


def trials(study: Shown) -> list[dict[str, Any]]:
    """The rows of the data named `TRIALS`, without unknown values."""
    shown, edges = study.ran, _edges(study.measured)
    best = study.measured["value"].where(study.measured["kind"] == "search")
    so_far = best.reindex(shown.index).cummax().ffill()
    return [
        _rounded(row) | {"edge": index in edges, "so_far": _number(so_far[index])}
        for index, row in zip(
            shown.index, shown[list(_FIELDS)].to_dict("records"), strict=True
        )
    ]  # fmt: skip


def _edges(measured: pd.DataFrame) -> set[int]:
    """Numbers of the trials with the largest micro_batch of each build and cell."""
    searched = measured[measured["kind"] == "search"]
    if searched.empty:
        return set()
    return set(searched.groupby(["cell", "build"])["micro_batch"].idxmax())


def _rounded(row: Mapping[Any, Any]) -> dict[str, Any]:
    numbers = {name: _number(value) for name, value in row.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def quantity(field: str, title: str, *, zero: bool = False, log: bool = False,
             format: str | None = None) -> Spec:  # fmt: skip
    """An axis of numbers."""
    scale: Spec = {"type": "log", "nice": False} if log else {"zero": zero}
    axis: Spec = {"labelOverlap": "greedy", **({"format": format} if format else {})}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def named(field: str, **more: Any) -> Spec:
    """An axis of configurations. In a narrow chart each word has a line."""
    narrow = f"{WIDTH} < {NARROW}"
    axis = {
        "labelExpr": f"{narrow} ? split(datum.label, ', ') : datum.label",
        "labelLimit": {"expr": f"0.42 * {WIDTH}"},
    }
    return {"field": field, "type": "nominal", "title": None, "axis": axis, **more}


def powers(field: str, title: str, values: Sequence[int]) -> Spec:
    """An axis of whole numbers, each mostly twice the one before."""
    ticks = sorted(set(values))
    found = quantity(field, title, log=True, format="d")
    found["scale"] |= {"base": 2, "domain": [ticks[0] / 1.15, ticks[-1] * 1.15]}
    found["axis"] |= {"values": ticks, "grid": False}
    return found


def tooltip(study: Shown, *more: tuple[str, str, str]) -> list[Spec]:
    """The tooltip of a trial; `more` are fields, titles and formats."""
    fields = [
        ("candidate", "candidate", ""), ("verdict", "verdict", ""), ("kind", "kind", ""),
        ("number", "number", ""), ("value", study.unit, ".3s"),
        ("tokens_per_s", "tokens/s", ".3s"), ("peak_device_gib", "peak, GiB", ".3f"),
        *more, ("reason", "reason", ""),
    ]  # fmt: skip
    return [
        {"field": field, "title": title, **({"format": format} if format else {})}
        for field, title, format in fields
    ]


def by_verdict(study: Shown, channel: str) -> Spec:
    """Colours or shapes of the verdicts that occur."""
    seen = [v for v in VERDICTS if v.value in set(study.trials["verdict"])]
    place = 0 if channel == "color" else 1
    return {
        "field": "verdict",
        "type": "nominal",
        "title": "Verdict",
        "scale": {
            "domain": [verdict.value for verdict in seen],
            "range": [VERDICTS[verdict][place] for verdict in seen],
        },
    }


def by_build(study: Shown) -> Spec:
    """Colours of builds; a single build has no legend."""
    builds = sorted(set(study.trials["build"]), key=lambda build: (build != "plain", build))
    longest = max((len(build) for build in builds), default=0)
    many = {"scheme": "tableau20" if len(builds) <= 20 else "sinebow"}
    return {
        "field": "build",
        "type": "nominal",
        "title": "Build",
        "sort": builds,
        **({"scale": many} if len(builds) > len(PALETTE) else {}),
        "legend": {
            "columns": {"expr": f"max(1, floor({WIDTH} / {60 + 7 * longest}))"},
            "labelLimit": {"expr": f"0.8 * {WIDTH}"},
            "symbolType": "circle",
            "symbolOpacity": 1,
            "symbolFillColor": "transparent",
            "symbolStrokeWidth": 3,
        }
        if len(builds) > 1
        else None,
    }


def one_cell(study: Shown) -> tuple[Spec, Spec]:
    """A choice of depth and length, the winner's first; and its filter."""
    cells = list(dict.fromkeys(study.trials["cell"]))
    best = study.best.config.candidate if study.best is not None else None
    of_best = study.trials.loc[
        (study.trials["depth"] == best.depth) & (study.trials["seq_len"] == best.seq_len), "cell"
    ] if best is not None else study.trials["cell"]  # fmt: skip
    chosen = next(iter(of_best), cells[0])
    param: Spec = {"name": "cell", "value": chosen}
    if len(cells) > 1:
        param["bind"] = {"input": "select", "options": cells, "name": "Depth and length: "}
    return param, {"filter": "datum.cell === cell"}


def chart(*layers: Spec, data: Sequence[Mapping[Any, Any]] | None = None, **more: Any) -> Spec:
    """A chart of `layers` that draws the trials, or `data` of its own."""
    source = {"name": TRIALS} if data is None else {"values": [_rounded(row) for row in data]}
    return {"$schema": SCHEMA, "data": source, "layer": list(layers), **more}
