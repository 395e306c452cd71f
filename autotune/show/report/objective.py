"""The objective of a study, in words and numbers to show."""

from __future__ import annotations

from autotune.result.best import Measured
from autotune.show.report.text import si
from autotune.space.outcome import Measurement, Objective

SCALES = {
    "flops": ("model_flops_per_s", "model FLOP/s"),
    "tokens_per_s": ("tokens_per_s", "tokens/s"),
    "samples_per_s": ("samples_per_s", "samples/s"),
    "tokens_per_joule": ("tokens_per_joule", "tokens/J"),
}
"""For each objective, its column in a study's trials, and its name."""


def rate(value: float, objective: str) -> str:
    """A value of that objective: "1.92k tokens/s", "145 GFLOP/s"."""
    unit = SCALES[objective][1].removeprefix("model ")
    return si(value, unit) if unit == "FLOP/s" else f"{si(value)} {unit}"


def has_no_tokens(measured: Measured | Measurement) -> bool:
    """Whether samples count as one token each: images, or a script's vectors."""
    return measured.tokens_per_s == measured.samples_per_s


def of_objective(measured: Measured, objective: Objective | str) -> float:
    """The value of that objective; 0 if it was not measured."""
    if objective == "tokens_per_joule":
        return 1 / measured.joules_per_token if measured.joules_per_token else 0.0
    rates = {"flops": measured.model_flops_per_s, "samples_per_s": measured.samples_per_s}
    return rates.get(objective, measured.tokens_per_s)


def interval(measured: Measured, objective: Objective | str) -> tuple[float, float, float]:
    """Low, median and high value of that objective."""
    value, step = of_objective(measured, objective), measured.step_s
    if not step.low:
        return value, value, value
    return value * step.median / step.high, value, value * step.median / step.low
