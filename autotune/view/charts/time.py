"""What each trial came to, in the order of time."""

from __future__ import annotations

from autotune.view.charts.vega import Spec, by_verdict, chart, quantity, tooltip
from autotune.view.study import Shown


def time(study: Shown) -> Spec | None:
    """None before the first trial ended."""
    if study.trials["ended_s"].dropna().empty:
        return None
    x = quantity("minutes", "minutes since the start", zero=True)
    y = quantity("shown", study.unit, zero=True, format="~s")
    minutes = {"calculate": "datum.ended_s / 60", "as": "minutes"}
    shown = {"calculate": "isValid(datum.value) ? datum.value : 0", "as": "shown"}
    return chart(
        {"transform": [minutes, {"filter": "isValid(datum.so_far)"}],
         "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "tooltip": None,
                  "opacity": 0.6},
         "encoding": {"x": x, "y": y | {"field": "so_far"}, "color": {"value": "#009e73"}}},
        {"transform": [minutes, shown], "mark": {"type": "point", "filled": True, "size": 55},
         "encoding": {"x": x, "y": y, "tooltip": tooltip(study),
                      "color": by_verdict(study, "color"), "shape": by_verdict(study, "shape")}},
    )  # fmt: skip
