"""Predicted peaks beside recorded ones: before any measurement, and after a few trials."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict

from shared import ROOT, kept, table

from autotune.measure.runner import counting
from autotune.measure.testbed.recording import Recording
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.trace import Trace, request
from autotune.study.predict.predictor import Predictor
from autotune.wire.helpers import Described

GRIDS = ROOT / "results" / "grids"
TRIALS = 3
SEEDS = 20
TRACE_S = 120.0


def grid_errors() -> str:
    """Median errors of the peaks of each grid, traced on this machine. After `TRIALS` measurements
    of random candidates, it is the median over `SEEDS` draws of the other candidates' errors.
    Grids with no more than twice so many candidates are left out."""
    recordings = map(Recording, sorted(GRIDS.glob("*.csv")))
    found = {
        each.grid.path.stem: errors(each) for each in recordings
        if len({row.candidate for row in each.grid.rows}) > 2 * TRIALS
    }  # fmt: skip
    rows = (
        (name, count, f"{before:.1%}", f"{after:.1%}", f"{most:.1%}")
        for name, (before, after, most, count) in found.items()
    )
    head = f"grid | candidates | traced | after {TRIALS} trials | 90th percentile then"
    first = statistics.median(before for before, *_ in found.values())
    then = statistics.median(after for _, after, *_ in found.values())
    return (
        f"{table(head, rows)}\n\nMedian of the grids: {first:.1%} (goal: at most 10 %):"
        f" {kept(first <= 0.1)}; after {TRIALS} trials {then:.1%} (goal: at most 3 %):"
        f" {kept(then <= 0.03)}."
    )


def errors(recording: Recording) -> tuple[float, float, float, int]:
    """The error before and after, its 90th percentile, and the number of candidates."""
    space = recording.space(Options.from_texts({"model": recording.grid.workload.model}))
    peaks: dict[Candidate, list[int]] = defaultdict(list)
    for row in recording.grid.rows:
        if row.report is not None:
            peaks[row.candidate].append(row.report.peaks.device_bytes)
    known = {c: statistics.median(peaks[c]) for c in space.candidates if c in peaks}
    asked = request(space, recording.device.kind)
    # In fresh processes: the memory of mere imports is part of every peak.
    found = counting.describe(asked, TRACE_S)
    trace = Trace(asked, found) if isinstance(found, Described) else None

    def fresh() -> Predictor:
        predictor = Predictor(space, recording.device.kind)
        if trace is not None:
            predictor.trace(trace)
        return predictor

    def wrong(predictor: Predictor, of: list[Candidate]) -> list[float]:
        return [abs(predictor.peak(c).bytes / known[c] - 1) for c in of]

    before = statistics.median(wrong(fresh(), list(known)))
    places = {c: i for i, c in enumerate(space.candidates)}
    medians, last = [], []
    for seed in range(SEEDS):
        rng = random.Random(seed)
        seen = rng.sample(sorted(known), TRIALS)
        predictor = fresh()
        for c in seen:
            predictor.memory.observe(places[c], rng.choice(peaks[c]))
        found_wrong = sorted(wrong(predictor, [c for c in known if c not in seen]))
        medians.append(statistics.median(found_wrong))
        last.append(found_wrong[int(0.9 * len(found_wrong))])
    return before, statistics.median(medians), statistics.median(last), len(known)
