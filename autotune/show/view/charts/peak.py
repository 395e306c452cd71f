"""The parts of the peak of each cell's winner."""

from __future__ import annotations

from autotune.result.best import Cell
from autotune.show.report.objective import of_objective
from autotune.show.view.charts.vega import Spec, chart, named
from autotune.show.view.study import GIB, Shown
from autotune.space.engines import state_bytes

MOST = 12
"""The most cells; the fastest ones are shown."""
PARTS = ("weights", "gradients", "optimizer state", "activations and the rest",
         "kept by the allocator", "outside the allocator")  # fmt: skip
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#8c8c8c")


def peak(study: Shown) -> Spec | None:
    """The chart; None if nothing fitted, or only a script knows the model."""
    if study.best is None or study.workload.of_script:
        return None
    cells = sorted(
        study.best.cells, key=lambda cell: -of_objective(cell.measured, study.objective)
    )[:MOST]
    rows = [
        {
            "cell": f"depth {cell.depth}, seq {cell.seq_len}, micro {cell.config.micro_batch}",
            "part": part,
            "gib": size / GIB,
            "place": place,
        }
        for cell in cells
        for place, (part, size) in enumerate(parts(study, cell).items())
        if size
    ]
    shown = [name for name in PARTS if any(row["part"] == name for row in rows)]
    return chart(
        {"mark": {"type": "bar", "height": {"band": 0.7}},
         "encoding": {
             "y": named("cell", sort=None),
             "x": {"field": "gib", "type": "quantitative", "title": "GiB of a rank",
                   "stack": "zero"},
             "order": {"field": "place"},
             "color": {"field": "part", "type": "nominal", "title": None,
                       "scale": {"domain": shown,
                                 "range": [COLOURS[PARTS.index(name)] for name in shown]}},
             "tooltip": [{"field": "cell", "title": "of"}, {"field": "part"},
                         {"field": "gib", "title": "GiB", "format": ".3f"}]}},
        data=rows, height={"step": 48},
    )  # fmt: skip


def parts(study: Shown, cell: Cell) -> dict[str, float]:
    """Bytes of the device by purpose. State is computed, the rest is measured."""
    held, peak_bytes = state_bytes(study.workload, cell.config.candidate), cell.measured.peak_bytes
    state = {"weights": held.weights, "gradients": held.gradients,
             "optimizer state": held.optimizer}  # fmt: skip
    if study.best is not None and study.best.device_kind == "cpu":
        state["optimizer state"] += held.host
    return state | {
        "activations and the rest": max(0.0, peak_bytes.allocated - sum(state.values())),
        "kept by the allocator": max(0, peak_bytes.reserved - peak_bytes.allocated),
        "outside the allocator": max(0, peak_bytes.device - peak_bytes.reserved),
    }
