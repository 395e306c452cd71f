"""The rounds of the finals."""

from __future__ import annotations

from autotune.show.view.charts.vega import LINE, Spec, chart, named, quantity
from autotune.show.view.study import Shown


def finals(study: Shown) -> Spec | None:
    """The chart; None without a timed final."""
    rounds = study.measured[study.measured["kind"] == "final"]
    if rounds.empty:
        return None
    rounds = rounds.assign(round=1 + rounds.groupby("candidate").cumcount())
    fields = ["candidate", "value", "value_low", "value_high", "round"]
    words = 1 + rounds["candidate"].str.count(", ").max()  # each may need a line of its own
    most = rounds["round"].max()
    x = quantity("value", study.unit, format="~s")
    y = named("candidate", sort={"field": "value", "op": "median", "order": "descending"})
    offset = {"field": "round", "type": "ordinal"}
    told = [{"field": "candidate"}, {"field": "round"},
            *({"field": name, "title": title, "format": ".4s"} for name, title in (
                ("value", study.unit), ("value_low", "low"), ("value_high", "high")))]  # fmt: skip
    shared: Spec = {"y": y, "yOffset": offset, "tooltip": told}
    return chart(
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {**shared, "x": x | {"field": "value_low"}, "x2": {"field": "value_high"},
                      "color": {"value": "#8c8c8c"}}},
        {"mark": {"type": "point", "filled": True, "shape": "diamond", "size": 70, "opacity": 1},
         "encoding": {**shared, "x": x, "color": {"value": "#0072b2"}}},
        data=rounds[fields].to_dict("records"), height={"step": max(16, LINE * words / most)},
    )  # fmt: skip
