"""The choice of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.advise.loader.asked import MARGIN, LoaderProbe
from autotune.advise.loader.measured import SettingRow

AS_FAST = 0.95
"""Without a need, this share of the fastest rate is enough."""


@dataclass(frozen=True, kw_only=True)
class LoaderChoice:
    row: SettingRow | None
    """None if none stays under the host ceiling."""
    enough: bool
    """Whether it gives the needed rate; without a need, whether there is a row."""
    needed: float | None
    """The needed rate per second, in the unit of the rows."""
    lost_share: float = 0.0
    """Share of the device's time spent waiting for batches."""


def choose(rows: Sequence[SettingRow], asked: LoaderProbe) -> LoaderChoice:
    """The smallest of `rows`, ascending, that is no bottleneck or nearly the fastest."""
    unit = rows[0].unit
    needed = None
    if asked.need is not None:
        needed = getattr(asked.need, f"{unit}_per_s")
    fitting = [r for r in rows if asked.training_bytes + r.host_bytes <= asked.limit_bytes]
    if not fitting:
        return LoaderChoice(row=None, enough=False, needed=needed)
    fastest = max(fitting, key=lambda row: row.rate(unit).median)
    if needed is None:
        least = AS_FAST * fastest.rate(unit).median
        row = next(row for row in fitting if row.rate(unit).median >= least)
        return LoaderChoice(row=row, enough=True, needed=None)
    for row in fitting:
        if row.rate(unit).low >= MARGIN * needed:
            return LoaderChoice(row=row, enough=True, needed=needed)
    lost = max(0.0, 1 - fastest.rate(unit).median / needed)
    return LoaderChoice(row=fastest, enough=False, needed=needed, lost_share=lost)
