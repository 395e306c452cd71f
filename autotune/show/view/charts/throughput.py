"""The speed of each build by micro_batch, up to its memory limit."""

from __future__ import annotations

from autotune.show.view.charts.vega import (
    Spec,
    by_build,
    chart,
    one_cell,
    powers,
    quantity,
    tooltip,
)
from autotune.show.view.study import Shown
from autotune.space.outcome import Verdict

FITS = "(datum.verdict === 'ok' || datum.verdict === 'pruned') && isValid(datum.value)"


def throughput(study: Shown) -> Spec | None:
    """The chart; None without a timed trial."""
    if study.measured.empty:
        return None
    param, in_cell = one_cell(study)
    x = powers("micro_batch", "micro-batch", study.ran["micro_batch"].tolist())
    y = quantity("value", study.unit, zero=True, format="~s")
    colour = by_build(study)
    searched = {"filter": f"datum.kind === 'search' && {FITS}"}
    told = tooltip(study)
    layers = [
        {"transform": [in_cell, searched],
         "mark": {"type": "line", "strokeWidth": 2, "tooltip": None},
         "encoding": {"x": x, "y": y, "color": colour}},
        {"transform": [in_cell, searched], "mark": {"type": "point", "filled": True, "size": 50},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told,
                      "opacity": {"condition": {"test": "datum.verdict === 'ok'", "value": 1},
                                  "value": 0.45}}},
        {"transform": [in_cell, {"filter": f"datum.edge && {FITS}"}],
         "mark": {"type": "point", "size": 200, "filled": False, "strokeWidth": 2},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told}},
        {"transform": [in_cell, {"filter": f"datum.kind === 'final' && {FITS}"}],
         "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 90},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told}},
    ]  # fmt: skip
    kept = [verdict.value for verdict in Verdict if verdict.fits or verdict == Verdict.SKIPPED]
    if not study.trials["verdict"].isin(kept).all():
        layers.append(
            {"transform": [in_cell, {"filter": f"!({FITS})"}],
             "mark": {"type": "point", "shape": "cross", "filled": True, "size": 80, "angle": 45},
             "encoding": {"x": x, "y": {"datum": 0}, "tooltip": told, "color": colour}}
        )  # fmt: skip
    return chart(*layers, params=[param])
