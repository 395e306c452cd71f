"""Compares the winner with the defaults of training frameworks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.show.report.objective import interval
from autotune.show.view.study import Shown
from autotune.space.axes import AXES
from autotune.space.outcome import Verdict

DEFAULT_MICRO_BATCH = 8
"""The default of per_device_train_batch_size. Source: transformers 5.23 (training_args.py). Its
defaults checkpoint, shard, offload and compile nothing."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The trial that is nearest to a framework's defaults at the winner's depth and length."""

    micro_batch: int
    candidate: str
    verdict: Verdict
    interval: tuple[float, float, float] | None
    """Low, median and high of the objective over its rounds, if it was timed."""
    is_default: bool
    """Whether it has exactly the defaults, not only similar values."""


def baseline(study: Shown) -> Baseline | None:
    """The trial to compare with; None without a winner, or if none resembles it."""
    if study.best is None or study.workload.of_script:
        return None
    trials, config = study.trials, study.best.config
    alike: Any = (trials["depth"] == config.depth) & (trials["seq_len"] == config.seq_len)
    switched = {name: axis.plain for name, axis in AXES.items() if axis.plain is not None}
    for name, plain in switched.items():
        values = study.manifest.space["axes"].get(name, [plain])
        switched[name] = plain if plain in values else getattr(config, name)
        alike &= trials[name] == switched[name]
    lost = ~trials["verdict"].isin([verdict.value for verdict in Verdict if verdict.fits])
    if study.workload.length_mix is not None:  # the search only measured the longest samples
        alike &= lost | (trials["kind"] == "final")
    # Trials that were skipped for memory do not fit; those that the budget left out do not count.
    near = trials[alike & ((trials["verdict"] != Verdict.SKIPPED) | trials["witness"].notna())]
    if near.empty:
        return None
    nearest = min(near["micro_batch"], key=lambda m: (abs(math.log2(m / DEFAULT_MICRO_BATCH)), -m))
    rows = near[near["micro_batch"] == nearest]
    # Its finals count, if there are any. If one did not fit, it does not fit.
    rows = rows[rows["kind"] == rows["kind"].iloc[-1]]
    unfit = rows[lost[rows.index]]
    return Baseline(
        micro_batch=int(nearest),
        candidate=str(rows["candidate"].iloc[0]),
        verdict=Verdict((rows if unfit.empty else unfit)["verdict"].iloc[0]),
        interval=_interval(rows) if unfit.empty else None,
        is_default=int(nearest) == DEFAULT_MICRO_BATCH
        and all(value == AXES[name].plain for name, value in switched.items()),
    )


def _interval(rows: pd.DataFrame) -> tuple[float, float, float]:
    value = float(rows["value"].median())
    low, high = rows["value_low"].min(), rows["value_high"].max()
    return (value, value, value) if pd.isna(low) else (float(low), value, float(high))


def compared(study: Shown) -> str:
    """The winner compared with the defaults, in words; empty without such a trial."""
    found = baseline(study)
    if found is None or study.best is None:
        return ""
    name = f"{'' if found.is_default else 'Nearest to '}a framework's defaults"
    shown = f"{name[0].upper()}{name[1:]} ({found.candidate})"
    config = study.best.config
    off = all(getattr(config, n) == a.plain for n, a in AXES.items() if a.plain is not None)
    if found.micro_batch == config.micro_batch and off:
        return f"{shown}: they are the best here." if found.is_default else ""
    if found.interval is None:
        fits = "did not fit" if found.verdict.bounds_memory else f"{found.verdict}"
        return f"{shown}: {'does not fit' if found.verdict == Verdict.SKIPPED else fits}."
    low, value, high = interval(study.best.measured, study.objective)
    times = f"{value / found.interval[1]:.2f} times the {study.unit}"
    if low <= found.interval[2] and found.interval[0] <= high:
        return f"{shown} → best: {times}; the intervals overlap."
    return f"{shown} → best: {times}."
