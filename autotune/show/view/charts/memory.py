"""A rank's memory over its tokens, measured and predicted."""

from __future__ import annotations

from autotune.show.view.charts.vega import Spec, by_build, chart, powers, quantity, tooltip
from autotune.show.view.study import GIB, Shown
from autotune.units import gib

FAR = 4.0
"""If the ceiling is so many times the largest peak, the scale of bytes is logarithmic."""


def memory(study: Shown) -> Spec | None:
    """The chart; None without a known peak."""
    peaks = study.trials["peak_device_gib"].dropna()
    if peaks.empty:
        return None
    limits = study.limits
    log = limits.limit_bytes / GIB > FAR * peaks.max()
    tokens = study.ran["tokens_per_micro_step"].tolist()
    x = powers("tokens_per_micro_step", "tokens per micro-step and rank", tokens)
    y = quantity("peak_device_gib", "peak of a rank, GiB", log=log, zero=not log)
    predicted = ("predicted_peak_gib", "predicted, GiB", ".3f")
    least = 0.8 * float(peaks.min()) if log else 0.0
    if log:
        y["scale"] |= {"domain": [least, 1.1 * limits.capacity_bytes / GIB]}
    colour, told = by_build(study), tooltip(study, predicted)
    fitted = "datum.verdict === 'ok' || datum.verdict === 'pruned'"
    lines = [
        {"gib": limits.capacity_bytes / GIB, "line": f"capacity {gib(limits.capacity_bytes)}"},
        {"gib": limits.limit_bytes / GIB, "line": f"ceiling {gib(limits.limit_bytes)}"},
    ]
    return chart(
        {"transform": [{"filter": "datum.kind === 'search' && isValid(datum.predicted_low_gib)"},
                       {"filter": f"datum.predicted_high_gib > {least}"},
                       {"calculate": f"max({least}, datum.predicted_low_gib)", "as": "low"}],
         "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.25, "clip": True},
         "encoding": {"x": x, "y": y | {"field": "low"},
                      "y2": {"field": "predicted_high_gib"}, "color": colour, "tooltip": told}},
        {"transform": [{"filter": f"isValid(datum.peak_device_gib) && ({fitted})"}],
         "mark": {"type": "point", "filled": True, "size": 50},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told}},
        {"transform": [{"filter": f"isValid(datum.peak_device_gib) && !({fitted})"}],
         "mark": {"type": "point", "shape": "cross", "filled": True, "size": 80, "angle": 45},
         "encoding": {"x": x, "y": y, "color": colour, "tooltip": told}},
        {"data": {"values": lines},
         "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.5},
         "encoding": {"y": {"field": "gib", "type": "quantitative"}}},
        {"data": {"values": lines},
         "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -2},
         "encoding": {"x": {"value": 0}, "y": {"field": "gib", "type": "quantitative"},
                      "text": {"field": "line"}}},
    )  # fmt: skip
