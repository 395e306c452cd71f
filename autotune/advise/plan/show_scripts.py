"""Prints plans for a script: as a table, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.advise.plan.scripts import Border, ScriptPlan
from autotune.advise.plan.show import csv_of
from autotune.show.report.objective import has_no_tokens
from autotune.show.report.text import columns, shown_axes, si
from autotune.space.outcome import Outcome
from autotune.units import gib

_LEGEND = (
    "micro: the largest that fits, weighed by the script itself on emulated GPUs; next: the next"
    " larger one that was asked for; {rate}: modelled, not timed"
)


def print_plans(console: Console, plans: Sequence[ScriptPlan], most: int) -> None:
    """Print at most `most` rows of each plan."""
    seen = [found for plan in plans for row in plan.rows
            if (found := row.outcome.measurement) is not None]  # fmt: skip
    rate = "samples/s" if seen and all(map(has_no_tokens, seen)) else "tok/s"
    for plan in plans:
        axes = [each for each in shown_axes(plan.space.axes, of_script=True)
                if each.name != "micro_batch"]  # fmt: skip
        accumulated = plan.space.workload.global_batch is not None
        limits, name = plan.space.limits, {f.name: f.value for f in plan.space.fixed}
        console.print(Text(
            f"{name['script']}; {plan.gpus} x {name['device']}, {gib(limits.limit_bytes)} of"
            f" {gib(limits.capacity_bytes)} a GPU allowed", style="bold",
        ), soft_wrap=True)  # fmt: skip
        heads = [*(each.label for each in axes), "micro", *(["accum"] if accumulated else []),
                 "peak", "of GPU", "next", rate]  # fmt: skip
        rows = (
            [
                *(str(getattr(row.candidate, each.name)) for each in axes),
                str(row.candidate.micro_batch),
                *([str(row.grad_accum(plan.space.workload))] if accumulated else []),
                *_found(row, limits.capacity_bytes),
            ]
            for row in plan.rows[:most]
        )
        console.print(columns(heads, rows), soft_wrap=True)
    console.print(Text(_LEGEND.format(rate=rate), style="dim"), soft_wrap=True)


def _found(row: Border, capacity_bytes: int) -> list[str | Text]:
    """The cells from peak to throughput."""
    found = row.outcome.measurement
    fits = row.outcome.verdict.fits
    peak = "" if found is None else gib(found.peaks.device_bytes)
    share = "" if found is None else f"{found.peaks.device_bytes / capacity_bytes:.0%}"
    above = "" if row.above is None else f"{row.above[0].micro_batch} {_how(row.above[1])}"
    return [
        peak, share, Text(above if fits else str(row.outcome.verdict), "green" if fits else "red"),
        si(found.tokens_per_s) if found is not None and fits else "",
    ]  # fmt: skip


def _how(outcome: Outcome) -> str:
    found = outcome.measurement
    return str(outcome.verdict) if found is None else gib(found.peaks.device_bytes)


def as_json(plans: Sequence[ScriptPlan]) -> str:
    limits = plans[-1].space.limits
    body = {
        "capacity_bytes": limits.capacity_bytes,
        "limit_bytes": limits.limit_bytes,
        "rows": _records(plans),
    }
    return json.dumps(body, indent=2) + "\n"


def as_csv(plans: Sequence[ScriptPlan]) -> str:
    return csv_of(_records(plans))


def _records(plans: Sequence[ScriptPlan]) -> list[dict[str, Any]]:
    """One row each as JSON types; sizes in bytes."""
    return [
        {
            "gpus": plan.gpus,
            "candidate": asdict(row.candidate),
            "grad_accum": row.grad_accum(plan.space.workload),
            **_ended(row.outcome),
            "next_micro_batch": None if row.above is None else row.above[0].micro_batch,
            "next": _ended(None if row.above is None else row.above[1]),
        }
        for plan in plans for row in plan.rows
    ]  # fmt: skip


def _ended(outcome: Outcome | None) -> dict[str, Any]:
    """The end of a launch; all None without one."""
    found = None if outcome is None else outcome.measurement
    return {
        "fits": outcome and outcome.verdict.fits,
        "verdict": outcome and outcome.verdict,
        "reason": outcome and outcome.reason,
        "peak_bytes": None if found is None else found.peaks.device_bytes,
        "modelled_tokens_per_s": None if found is None else found.tokens_per_s,
    }
