"""The content of a record for trackers and tables: axes, figures, and its step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.space.axes import AXES
from autotune.space.outcome import Outcome, Record, Verdict
from autotune.space.space import Limits

CURVE = "timed_step_s"
"""The name of `Run.step_times` in trackers; `step_s` is the median."""
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One trial, or one round of a final."""

    name: str
    axes: dict[str, str | int]
    verdict: str
    reason: str
    figures: dict[str, float]
    step_times: dict[int, float]
    """Seconds, by the number of the step."""


def runs_of(records: Sequence[Record], limits: Limits) -> list[LoggedRun]:
    """A run for each probe, in the order of time. Axes that are plain everywhere are left out."""
    probed = [r for r in records if r.outcome.verdict != Verdict.SKIPPED]
    probed.sort(key=lambda r: r.outcome.started_s)
    axes = {
        name: axis
        for name, axis in AXES.items()
        if any(getattr(r.candidate, name) != axis.plain for r in probed)
    }
    return [
        LoggedRun(
            name=f"{r.purpose}-{r.number:04d}-{r.candidate.key}",
            axes={name: getattr(r.candidate, name) for name in axes},
            verdict=r.outcome.verdict.value,
            reason=r.outcome.reason,
            figures=figures(r.outcome, limits),
            step_times=r.outcome.measurement.step_times if r.outcome.measurement else {},
        )
        for r in probed
    ]


def figures(outcome: Outcome, limits: Limits) -> dict[str, float]:
    """The measured values, to 4 digits; unknown ones are left out."""
    found = outcome.measurement
    peaks = found.peaks if found is not None else outcome.peaks
    known: dict[str, float | None] = {}
    if found is not None:
        known = {
            "tokens_per_s": found.tokens_per_s,
            "samples_per_s": found.samples_per_s,
            "model_tflop_per_s": found.model_flops_per_s / 1e12,
            "tokens_per_joule": found.value("tokens_per_joule") or None,
            "step_s": found.step.median,
        }
    if peaks is not None:
        known |= {
            "peak_gib": peaks.device_bytes / _GIB,
            "share_of_capacity": peaks.device_bytes / limits.capacity_bytes,
        }
    return {name: float(f"{value:.4g}") for name, value in known.items() if value is not None}
