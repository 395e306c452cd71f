"""Recorded grids of a made-up machine, written as the recorder writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.measure.replay import grid
from autotune.measure.replay.grid import GridRow
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.workload import Workload
from autotune.wire.reports import Conditions, Energy, Peaks, Report
from tests.support.records import MIB, space

START_S = 3.0
CALM = Conditions(
    interval_cpu_s=2.0,
    busy_cpu_s=1.0,
    steal_cpu_s=0.0,
    own_cpu_s=1.0,
)


def header(workload: Workload | None = None, **changes: Any) -> dict[str, Any]:
    """Of a host of 4 GiB; `changes` replace its fields."""
    made = space()
    made = replace(made, workload=workload or made.workload)
    devices = {"kind": "cpu", "name": "a processor", "cores": 2, "capacity_bytes": 4096 * MIB}
    fingerprint = {"kind": "cpu", "devices": devices, "software": {"torch": "2.9.0"}}
    fields = {"schema_version": 1, "kind": "cpu", "space": made.manifest()}
    return fields | {"fingerprint": fingerprint, "settings": {}} | changes


def step_s(candidate: Candidate) -> float:
    """Faster per token the more tokens there are; deeper models are slower."""
    slower = 1.25 if candidate.checkpointing == "full" else 1.0
    return 0.0005 * candidate.depth**2 * (candidate.tokens + 64) * slower


def row(
    candidate: Candidate,
    steps: tuple[list[float], list[float]] | None = None,
    *,
    start_s: float = START_S,
    overhead: float = 1.0,
    conditions: Conditions = CALM,
    joules: float | None = None,
    repeat: int = 0,
) -> GridRow:
    """Measured in `steps` of warm-up and timing, else in 3 and 6 of `step_s`; 1 MiB a token.

    Each phase took `overhead` times what its steps took.
    """
    one_s = step_s(candidate)
    warmup, timed = steps or ([one_s] * 3, [one_s] * 6)
    size = candidate.tokens * MIB
    report = Report(
        number=0,
        step_s=timed,
        warmup_step_s=warmup,
        warmup_s=overhead * sum(warmup),
        timed_s=overhead * sum(timed),
        stopped_early=False,
        loss=1.5,
        peaks=Peaks.same(size),
        state_bytes=2 * MIB,
        conditions=conditions,
        energy=None if joules is None else Energy(joules, grid.COVERS),
    )
    return GridRow(
        candidate=candidate,
        repeat=repeat,
        verdict=Verdict.OK,
        group_start_s=start_s,
        report=report,
    )


def failed(candidate: Candidate, verdict: Verdict, reason: str) -> GridRow:
    return GridRow(
        candidate=candidate,
        repeat=0,
        verdict=verdict,
        group_start_s=START_S,
        report=None,
        reason=reason,
    )


def write(path: Path, rows: Iterable[GridRow] | None = None, **changes: Any) -> Path:
    """A grid in `path`: of `rows`, else of every candidate of `records.space` once."""
    rows = [row(candidate) for candidate in space().candidates] if rows is None else rows
    path.write_text(grid.head(header(**changes)) + "".join(map(grid.row_line, rows)))
    return path
