"""The wall time of a study by phases."""

from __future__ import annotations

from autotune.show.view.charts.vega import Spec, chart
from autotune.show.view.study import Shown

PHASES = {
    "starting groups": "#d55e00",
    "compiling": "#cc79a7",
    "warming up": "#e69f00",
    "timed steps": "#009e73",
    "rest of the probes": "#56b4e9",
    "between probes": "#8c8c8c",
}

LEAST_SHARE = 1e-3
"""A smaller share of the time gets no mark."""


def phases(study: Shown) -> Spec | None:
    """The chart; None before the end of the first trial."""
    spent = seconds(study)
    rows = [
        {"of": of, "phase": phase, "s": taken_s, "place": list(PHASES).index(phase)}
        for of, each in spent.items()
        for phase, taken_s in each.items()
        if taken_s > LEAST_SHARE * study.elapsed_s
    ]
    if not rows:
        return None
    names = [phase for phase in PHASES if any(row["phase"] == phase for row in rows)]
    several = float(study.trials["probe_s"].sum()) > probing_s(study) * (1 + LEAST_SHARE)
    title = "seconds, of all groups together" if several else "seconds"
    return chart(
        {"mark": {"type": "bar", "height": {"band": 0.7}},
         "encoding": {
             "y": {"field": "of", "type": "nominal", "title": None, "sort": None},
             "x": {"field": "s", "type": "quantitative", "title": title, "stack": "zero"},
             "order": {"field": "place"},
             "color": {"field": "phase", "type": "nominal", "title": None,
                       "scale": {"domain": names, "range": [PHASES[name] for name in names]}},
             "tooltip": [{"field": "of"}, {"field": "phase"},
                         {"field": "s", "title": "seconds", "format": ".1f"}]}},
        data=rows, height={"step": 34},
    )  # fmt: skip


def seconds(study: Shown) -> dict[str, dict[str, float]]:
    """Seconds of the search, of the finals and of neither, by phase."""
    spent: dict[str, dict[str, float]] = {}
    for kind, name in (("search", "search"), ("final", "finals")):
        of_kind = study.trials[study.trials["kind"] == kind]
        sums = {
            column: float(of_kind[column].sum())
            for column in ("probe_s", "group_start_s", "compile_s", "warmup_s", "timed_s")
        }
        starting_s = max(0.0, sums["group_start_s"] - sums["compile_s"])
        known_s = starting_s + sums["compile_s"] + sums["warmup_s"] + sums["timed_s"]
        spent[name] = {
            "starting groups": starting_s,
            "compiling": sums["compile_s"],
            "warming up": sums["warmup_s"],
            "timed steps": sums["timed_s"],
            "rest of the probes": max(0.0, sums["probe_s"] - known_s),
        }
    spent["neither"] = {"between probes": max(0.0, study.elapsed_s - probing_s(study))}
    return spent


def probing_s(study: Shown) -> float:
    """Seconds in which at least one group probed."""
    probed_s = last_s = 0.0
    spans = study.trials[["started_s", "ended_s"]].dropna().sort_values("started_s")
    for began_s, ended_s in spans.to_numpy():
        probed_s += max(0.0, ended_s - max(began_s, last_s))
        last_s = max(last_s, ended_s)
    return probed_s
