"""What to say where a study found nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.folder.ending import Ended, Ending
from autotune.outcome import Record, Verdict
from autotune.space.space import Space
from autotune.units import gib


def why_nothing(
    records: Sequence[Record],
    space: Space,
    stopped_by: str | None,
    budget_s: float,
    *,
    lost: str = "",
) -> Ended:
    """Why no configuration can be named by a study that had `budget_s` in all, and may have `lost`
    all that it ran on."""
    tried = [r for r in records if r.outcome.verdict != Verdict.SKIPPED]
    bounded = [r for r in tried if r.outcome.verdict.bounds_memory]
    if stopped_by is not None:
        return Ended(Ending.NO_MEASUREMENT, f"stopped by {stopped_by} before anything fitted")
    if bounded:
        untried = sum(not any(r.settles(c) for r in bounded) for c in space.candidates)
        what = "nothing that was tried fits" if untried else "nothing fits"
        rest = f"; {untried} candidates were not tried before the budget ended" if untried else ""
        return Ended(Ending.NOTHING_FITS, _least(what, bounded, space) + rest)
    if lost:
        return Ended(Ending.NO_MEASUREMENT, f"nothing could be measured: {lost}")
    if tried:
        first = tried[0]
        cause = f"{first.candidate.key} was {first.outcome.verdict}: {first.outcome.reason}"
        return Ended(Ending.NO_MEASUREMENT, f"nothing could be measured; first, {cause}")
    more = max(2, math.ceil(2 * budget_s / 60))
    early = f"the budget ended before anything was measured; try --budget {more}m"
    saw = next((r.outcome.reason.partition("; ")[2] for r in records), "")
    early += f" ({saw})" if saw else ""
    return Ended(Ending.NO_MEASUREMENT, early)


def _least(what: str, bounded: Sequence[Record], space: Space) -> str:
    """The least peak that was seen, of candidates that did not fit."""
    limits = space.limits
    seen = [(r.outcome.peaks.device_bytes, r) for r in bounded if r.outcome.peaks is not None]
    text = (
        f"{what} under {gib(limits.limit_bytes)}"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})"
    )
    if not seen:
        return f"{text}; no candidate lived long enough to say how much it needs"
    peak_bytes, record = min(seen, key=lambda item: item[0])
    how = "held {} when it ran out" if record.outcome.verdict == Verdict.OOM else "peaked at {}"
    return f"{text}; the least peak seen: {record.candidate.key} {how.format(gib(peak_bytes))}"
