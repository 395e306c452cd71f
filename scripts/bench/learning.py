"""The value of an earlier study on the same machine: searches on grids, with it and without.

    .venv/bin/python scripts/bench/learning.py results/grids/*.csv [--seeds 20]

A grid is cut in two along depth and along seq_len. A whole study of 3 virtual minutes searches the
smaller values. Then two searches take the others: with its measurements, and without. Truth,
regret, ceilings and the noise floor are those of `search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from search import CEILINGS
from searches.grids import cores, truth
from searches.samplers import sampler_course, study_before
from searches.tables import percent
from shared import run, table, yes

from autotune.measure.testbed.recording import Recording
from autotune.space.choices import SAMPLER

PROBES = (1, 2, 3, 4, 6, 8, 12)
PROMISED = 3
"""The number of probes with a promise."""
BEFORE_MINUTES = 3.0
BEFORE_CEILING = 0.8
CUTS = ("depth", "seq_len")


@dataclass(frozen=True)
class Task:
    path: Path
    cut: str
    known: tuple[int, ...]
    """Values of the axis `cut` that were searched before."""
    left: tuple[int, ...]
    """Values that are searched now."""
    ceiling: float
    seed: int


@dataclass(frozen=True)
class Pair:
    """The same search without and with the earlier study: regrets after `PROBES`."""

    without: list[float]
    learned: list[float]
    probes: tuple[int, int]
    """Number of probes of each, until it stopped by itself."""
    floor: float


def main(*grids: Path, seeds: int = 20) -> None:
    with cores() as pool:
        for path in grids:
            for cut in CUTS:
                wanted = tasks(path, cut, seeds)
                if wanted:
                    pairs = [pair for pair in pool.map(carried_out, wanted, chunksize=4) if pair]
                    print(report(wanted[0], pairs), "\n", flush=True)


def tasks(path: Path, cut: str, seeds: int) -> list[Task]:
    """Tasks for one cut of a grid; empty if the axis has one value."""
    values = Recording(path).grid.rows
    found = sorted({getattr(row.candidate, cut) for row in values})
    half = (len(found) + 1) // 2
    known, left = tuple(found[:half]), tuple(found[half:])
    return [
        Task(path, cut, known, left, ceiling, seed)
        for ceiling in CEILINGS for seed in range(seeds) if left
    ]  # fmt: skip


def carried_out(task: Task) -> Pair | None:
    """Carry `task` out; None if nothing fits."""
    axes: dict[str, Any] = {task.cut: task.left}
    now = truth(task.path, task.ceiling, **axes)
    if not now.fitting:
        return None
    before = truth(task.path, BEFORE_CEILING, **{task.cut: task.known})
    earlier = [study_before(before, task.seed, BEFORE_MINUTES)]
    courses = [
        sampler_course(now, SAMPLER, task.seed, max(PROBES), known) for known in ((), earlier)
    ]
    without, learned = (
        [now.regret(course[min(n, len(course)) - 1].found if course else None) for n in PROBES]
        for course in courses
    )
    counts = (len(courses[0]), len(courses[1]))
    return Pair(without, learned, counts, now.oracle(task.seed))


def report(of: Task, pairs: Sequence[Pair]) -> str:
    """Regrets after each number of probes, and the promises."""
    known, left = (", ".join(map(str, values)) for values in (of.known, of.left))
    rows = [
        (
            f"after {count} probes",
            percent([each.without[place] for each in pairs]),
            percent([each.learned[place] for each in pairs]),
        )
        for place, count in enumerate(PROBES)
    ]
    stopped = np.median([each.probes for each in pairs], axis=0)
    ended = (f"probes until it stopped, at most {max(PROBES)}", *(f"{n:.0f}" for n in stopped))
    floor = [each.floor for each in pairs]
    found = float(np.median([each.learned[PROBES.index(PROMISED)] for each in pairs]))
    most = max(0.02, float(np.median(floor)) + 0.01)
    what = f"median regret after {PROMISED} probes, learned"
    promise = (what, f"{most:.1%}", f"{found:.1%}", yes(found <= most))
    return "\n".join([
        f"### {of.path.stem}: {of.cut} {left}, after a study of {of.cut} {known}", "",
        f"{len(pairs)} searches each.", "",
        table("regret, % (median / 90th percentile) | without | learned", [*rows, ended]), "",
        f"Noise floor: {percent(floor)}.", "",
        table("promise | at most | measured | held", [promise]),
    ])  # fmt: skip


if __name__ == "__main__":
    run(main)
