"""Predictions of memory against measurements."""

from __future__ import annotations

from autotune.show.view.charts.vega import Spec, by_build, chart, quantity, tooltip
from autotune.show.view.study import Shown


def predicted(study: Shown) -> Spec | None:
    """The chart; None without a measured prediction."""
    known = study.trials[["peak_device_gib", "predicted_peak_gib"]].dropna()
    known = known[(known > 0).all(axis=1)]  # after few measurements, 0 may be predicted
    if known.empty:
        return None
    low, high = 0.95 * float(known.to_numpy().min()), 1.05 * float(known.to_numpy().max())
    x = quantity("predicted_peak_gib", "predicted peak, GiB", log=True)
    y = quantity("peak_device_gib", "measured peak, GiB", log=True)
    for axis in (x, y):
        axis["scale"] |= {"domain": [low, high]}
    searched = {"filter": "datum.kind === 'search' && datum.predicted_peak_gib > 0"
                          " && datum.peak_device_gib > 0"}  # fmt: skip
    told = tooltip(study, ("predicted_peak_gib", "predicted, GiB", ".3f"))
    right = [{"predicted_peak_gib": size, "peak_device_gib": size} for size in (low, high)]
    return chart(
        {"data": {"values": right}, "mark": {"type": "line", "strokeDash": [6, 4],
                                             "strokeWidth": 1.5, "tooltip": None},
         "encoding": {"x": x, "y": y, "color": {"value": "#8c8c8c"}}},
        {"transform": [searched, {"filter": "datum.predicted_low_gib > 0"}],
         "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.25, "clip": True},
         "encoding": {"x": x | {"field": "predicted_low_gib"},
                      "x2": {"field": "predicted_high_gib"}, "y": y, "color": by_build(study)}},
        {"transform": [searched], "mark": {"type": "point", "filled": True, "size": 50},
         "encoding": {"x": x, "y": y, "color": by_build(study), "tooltip": told}},
    )  # fmt: skip
