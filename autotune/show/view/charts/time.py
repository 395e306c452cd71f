"""The result of each trial, in the order of time."""

from __future__ import annotations

from autotune.show.view.charts.vega import Spec, by_verdict, chart, quantity, tooltip
from autotune.show.view.study import Shown

SHORT_S = 180.0
"""Shorter studies are drawn in seconds."""


def time(study: Shown) -> Spec | None:
    """The chart; None before the end of the first trial."""
    if study.trials["ended_s"].dropna().empty:
        return None
    unit, each_s = ("minutes", 60) if study.elapsed_s > SHORT_S else ("seconds", 1)
    x = quantity("since", f"{unit} since the start", zero=True)
    y = quantity("shown", study.unit, zero=True, format="~s")
    if study.measured.empty:
        y["scale"] |= {"domainMax": 1}
    since = {"calculate": f"datum.ended_s / {each_s}", "as": "since"}
    shown = {"calculate": "isValid(datum.value) ? datum.value : 0", "as": "shown"}
    return chart(
        {"transform": [since, {"filter": "isValid(datum.so_far)"}],
         "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "tooltip": None,
                  "opacity": 0.6},
         "encoding": {"x": x, "y": y | {"field": "so_far"}, "color": {"value": "#009e73"}}},
        {"transform": [since, shown, {"filter": "datum.kind === 'search'"}],
         "mark": {"type": "point", "filled": True, "size": 55},
         "encoding": {"x": x, "y": y, "tooltip": tooltip(study),
                      "color": by_verdict(study, "color"), "shape": by_verdict(study, "shape")}},
        {"transform": [since, shown, {"filter": "datum.kind === 'final'"}],
         "mark": {"type": "point", "filled": False, "shape": "diamond", "size": 80},
         "encoding": {"x": x, "y": y, "tooltip": tooltip(study),
                      "color": by_verdict(study, "color")}},
    )  # fmt: skip
