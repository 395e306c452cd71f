"""The map of depths and lengths, each with its winner."""

from __future__ import annotations

from typing import Any

from autotune.result.best import Cell
from autotune.show.report.cells import evidence
from autotune.show.report.objective import of_objective, rate
from autotune.show.view.charts.vega import LINE, Spec, chart
from autotune.show.view.study import Shown
from autotune.space.axes import AXES, OTHER_AXES


def cells(study: Shown) -> Spec | None:
    """The chart; None without at least two cells."""
    if study.best is None or len(study.best.cells) < 2:
        return None
    found = study.best.cells
    differing = [n for n in OTHER_AXES if len({getattr(cell.config, n) for cell in found}) > 1]
    rows = [_row(study, cell, differing) for cell in found]
    most = max(row["value"] for row in rows)
    lines = max(1 + row["words"].count(", ") for row in rows)
    place = {
        "x": {"field": "seq_len", "type": "ordinal", "title": "sequence length",
              "axis": {"labelAngle": 0}},
        "y": {"field": "depth", "type": "ordinal", "title": "depth", "sort": "descending"},
    }  # fmt: skip
    ink = {"condition": {"test": f"datum.value > {0.55 * most}", "value": "#ffffff"},
           "value": "#1a1a1a"}  # fmt: skip
    told = [{"field": name} for name in ("depth", "seq_len", "rate", "words")]
    text = {"type": "text", "limit": {"expr": "bandwidth('x') - 4"}}
    return chart(
        {"mark": {"type": "rect", "cornerRadius": 4},
         "encoding": {**place, "tooltip": told,
                      "color": {"field": "value", "type": "quantitative", "title": study.unit,
                                "scale": {"scheme": "blues", "domainMin": 0},
                                "legend": {"format": "~s"}}}},
        {"mark": {**text, "dy": -LINE * lines / 2, "fontWeight": "bold"},
         "encoding": {**place, "text": {"field": "rate"}, "color": ink}},
        {"mark": {**text, "dy": LINE - LINE * lines / 2, "lineBreak": ", ", "lineHeight": LINE},
         "encoding": {**place, "text": {"field": "words"}, "color": ink}},
        data=rows, height={"step": LINE * (lines + 2)},
    )  # fmt: skip


def _row(study: Shown, cell: Cell, differing: list[str]) -> dict[str, Any]:
    words = [f"{AXES[name].label} {getattr(cell.config, name)}" for name in differing]
    value = of_objective(cell.measured, study.objective)
    best = ["the best"] if study.best and study.best.config == cell.config else []
    return {
        "depth": cell.depth,
        "seq_len": cell.seq_len,
        "value": value,
        "rate": rate(value, study.objective),
        "words": ", ".join([f"micro {cell.config.micro_batch}", *words, evidence(cell), *best]),
    }
