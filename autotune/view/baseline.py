"""What the winner is compared with: what a training framework does where nobody says anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune.outcome import Verdict
from autotune.result.best import Config
from autotune.space.axes import AXES
from autotune.view.study import Shown

DEFAULT_MICRO_BATCH = 8
"""per_device_train_batch_size where it is not set. Source: transformers 5.23 (training_args.py);
nothing is checkpointed, sharded, offloaded or compiled there either."""


@dataclass(frozen=True)
class Baseline:
    """The trial that is nearest to a framework's defaults at the winner's depth and length."""

    micro_batch: int
    candidate: str
    verdict: Verdict
    value: float | None
    """Of the objective, where it was timed."""

    @property
    def is_default(self) -> bool:
        """Whether it has the default micro_batch, and is not only near to it."""
        return self.micro_batch == DEFAULT_MICRO_BATCH


def baseline(study: Shown) -> Baseline | None:
    """None where nothing won, or nothing like it was tried."""
    if study.best is None or study.workload.of_script:
        return None
    trials, config = study.trials, study.best.config
    alike: Any = (trials["depth"] == config.depth) & (trials["seq_len"] == config.seq_len)
    for name, axis in AXES.items():
        values = study.manifest.space["axes"].get(name, [axis.plain])
        if axis.plain is not None and axis.plain in values:
            alike &= trials[name] == axis.plain
    # What was skipped for want of memory does not fit; what the budget left out says nothing.
    near = trials[alike & ((trials["verdict"] != Verdict.SKIPPED) | trials["witness"].notna())]
    if near.empty:
        return None
    nearest = min(near["micro_batch"], key=lambda m: (abs(math.log2(m / DEFAULT_MICRO_BATCH)), -m))
    rows = near[near["micro_batch"] == nearest]
    # Where it had finals, they count, and whatever did not fit once does not fit.
    rows = rows[rows["kind"] == rows["kind"].iloc[-1]]
    lost = rows[~rows["verdict"].isin([verdict.value for verdict in Verdict if verdict.fits])]
    return Baseline(
        micro_batch=int(nearest),
        candidate=str(rows["candidate"].iloc[0]),
        verdict=Verdict(rows["verdict"].iloc[0] if lost.empty else lost["verdict"].iloc[0]),
        value=float(rows["value"].median()) if lost.empty else None,
    )


def compared(study: Shown, value: float) -> str:
    """How the winner, of that value, compares with the defaults, for people; empty: with none."""
    found = baseline(study)
    if found is None or study.best is None:
        return ""
    name = f"{'' if found.is_default else 'Nearest to '}a framework's defaults"
    shown = f"{name[0].upper()}{name[1:]} ({found.candidate})"
    if found.micro_batch == study.best.config.micro_batch and _is_plain(study.best.config):
        return f"{shown}: they are the best here." if found.is_default else ""
    if found.value is None:
        fits = "did not fit" if found.verdict.bounds_memory else f"{found.verdict}"
        return f"{shown}: {'does not fit' if found.verdict == Verdict.SKIPPED else fits}."
    return f"{shown} → best: {value / found.value:.2f} times as fast."


def _is_plain(config: Config) -> bool:
    """Whether nothing is switched on that a framework leaves off."""
    return all(
        getattr(config, n) == axis.plain for n, axis in AXES.items() if axis.plain is not None
    )
