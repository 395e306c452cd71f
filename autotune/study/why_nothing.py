"""The messages of a study that finds nothing: before it, and after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.result.folder.past import Ending, StudyEnd
from autotune.space.outcome import Record, Verdict
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.units import gib

LIKELY = 0.5
"""The chance of fitting from which on a candidate is expected to fit."""


def nothing_expected(space: Space, predictor: Predictor) -> str:
    """Why nothing is expected to fit, and empty if something is."""
    of = space.workload
    if of.of_script or of.recorded or predictor.chance().max() >= LIKELY:
        return ""
    peaks = {c: predictor.peak(c).bytes for c in space.candidates}
    least = min(peaks, key=lambda c: peaks[c])
    limits = space.limits
    if peaks[least] <= limits.limit_bytes and predictor.host_memory is not None:
        host = gib(limits.host_limit_bytes)
        return f"nothing is expected to fit in the host's memory; the limit is {host}"
    return (
        f"nothing is expected to fit: the smallest candidate, {space.name(least)}, needs about"
        f" {gib(peaks[least])}; the limit is {gib(limits.limit_bytes)}"
    )


def why_nothing(
    records: Sequence[Record],
    space: Space,
    stopped_by: str | None,
    budget_s: float,
    *,
    trials: int | None = None,
    lost: str = "",
) -> StudyEnd:
    """Why the study names no configuration; `lost` says why it lost its last node."""
    tried = [r for r in records if r.outcome.verdict != Verdict.SKIPPED]
    bounded = [r for r in tried if r.outcome.verdict.bounds_memory]
    if stopped_by is not None:
        return StudyEnd(Ending.NO_MEASUREMENT, f"stopped by {stopped_by} before anything fitted")
    if bounded:
        known = [r for r in tried if not r.outcome.verdict.broke]
        open_ = {c for c in space.candidates if not any(r.settles(c) for r in known)}
        broke = {r.candidate: r for r in tried if r.outcome.verdict.broke and r.candidate in open_}
        untried = len(open_.difference(r.candidate for r in tried))
        text = _least("nothing that was tried fits" if open_ else "nothing fits", bounded, space)
        if broke:
            text += (
                f"; {len(broke)} ended otherwise: one, {_cause(next(iter(broke.values())), space)}"
            )
        if untried:
            probes = sum(r.purpose == "search" for r in tried)
            spent = trials is not None and probes >= trials
            end = lost or (f"--trials {trials} were run" if spent else "the budget ended")
            text += f"; {untried} candidates were not tried before {end}"
        unknown = broke or (lost and untried)
        return StudyEnd(Ending.NO_MEASUREMENT if unknown else Ending.NOTHING_FITS, text)
    if lost:
        return StudyEnd(Ending.NO_MEASUREMENT, f"nothing could be measured: {lost}")
    if tried:
        heedless = [_cause(r, space) for r in tried if r.outcome.only]
        first = heedless[0] if heedless else f"first, {_cause(tried[0], space)}"
        again = "; repair it, and start with a new --out: --resume repeats nothing"
        what = f"{first}{again if tried[0].outcome.verdict.broke else ''}"
        return StudyEnd(Ending.NO_MEASUREMENT, f"nothing could be measured; {what}")
    early = f"the budget ended before anything was measured; {_more(records, space, budget_s)}"
    saw = next((r.outcome.reason.partition("; ")[2] for r in records), "")
    early += f" ({saw})" if saw else ""
    return StudyEnd(Ending.NO_MEASUREMENT, early)


def _more(records: Sequence[Record], space: Space, budget_s: float) -> str:
    """What to do after a budget in which nothing was measured."""
    minutes = max(2, math.ceil(2 * budget_s / 60))
    if not records:
        return f"try --budget {minutes}m"
    first = records[0].outcome
    limit, expected = space.limits.limit_bytes, first.predicted_peak_bytes
    if not space.workload.of_script and expected is not None and expected > limit:
        return (
            f"{space.name(records[0].candidate)} is expected to need {gib(expected)}; the limit is"
            f" {gib(limit)}"
        )
    if first.needs_s is not None:
        of_ten = max(minutes, math.ceil(10 * first.needs_s / 60))
        return (
            f"a launch needs {first.needs_s:.0f} s, and a search ten or more: --budget {of_ten}m"
        )
    if first.log:
        return f"logs/{first.log} may say why; if it only started, try --budget {minutes}m"
    return f"try --budget {minutes}m"


def _cause(of: Record, space: Space) -> str:
    return f"{space.name(of.candidate)} was {of.outcome.verdict}: {of.outcome.reason}"


def _least(what: str, bounded: Sequence[Record], space: Space) -> str:
    """The least peak of the candidates that did not fit."""
    limits = space.limits
    seen = [(r.outcome.peaks.device_bytes, r) for r in bounded if r.outcome.peaks is not None]
    text = (
        f"{what} under {gib(limits.limit_bytes)}"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)})"
    )
    if not seen:
        return f"{text}; no candidate ran long enough to show its need"
    peak_bytes, record = min(seen, key=lambda item: item[0])
    how = "held {} when it ran out" if record.outcome.verdict == Verdict.OOM else "peaked at {}"
    seen_at = how.format(gib(peak_bytes))
    where = f": {record.outcome.reason}" if record.purpose == "phases" else ""
    return f"{text}; the least peak seen: {space.name(record.candidate)} {seen_at}{where}"
