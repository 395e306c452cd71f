"""What several probes at once are worth: studies of more and more slots on recorded grids.

    .venv/bin/python scripts/bench/parallel.py results/grids/cpu-1-rank.csv ... [--seeds 30]

Every search replays real measurements on a virtual clock, as `search.py` does: each slot has
a machine of its own, and a group starts there in the time that this took when it was recorded. A
search ends by itself. Regret is what the best candidate found lacks of the best that fits, as a
share; probes a minute are all probes over all minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from searches.grids import truth
from searches.samplers import TRACE_S, run_study

SLOTS = (1, 2, 4, 8)
CEILINGS = (0.4, 0.6, 0.8)
FASTER, WORSE = 5.0, 0.01
"""What the most slots have to reach: so many times the probes a minute of one, and no more regret
than so much over that of one."""


@dataclass(frozen=True)
class Task:
    """One search to run."""

    path: Path
    ceiling: float
    slots: int
    seed: int


@dataclass(frozen=True)
class Ran:
    """What came of it."""

    slots: int
    probes: int
    seconds: float
    """From the first probe's start to the last one's end."""
    regret: float
    """Of what the search found."""
    result: float
    """Of the result of the whole study, finals included."""
    whole_s: float
    """To the end of the finals."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("grids", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=30)
    asked = parser.parse_args(arguments)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for path in asked.grids:
            ceilings = [c for c in CEILINGS if truth(path, c).fitting]
            tasks = [
                Task(path, ceiling, slots, seed)
                for slots in SLOTS for ceiling in ceilings for seed in range(asked.seeds)
            ]  # fmt: skip
            print("\n".join(table(path.stem, pool.map(run, tasks, chunksize=8))), "\n", flush=True)
    return 0


def run(task: Task) -> Ran:
    """Carry `task` out."""
    known = truth(task.path, task.ceiling)
    options = replace(known.options, seed=task.seed, parallel=task.slots)
    study, watcher = run_study(known, options)
    course, choice = watcher.course, study.ledger.choice()
    return Ran(
        slots=task.slots,
        probes=len(course),
        seconds=course[-1].elapsed_s - TRACE_S,
        regret=known.regret(course[-1].found),
        result=known.regret(None if choice is None else choice.record.candidate),
        whole_s=max(r.outcome.started_s + r.outcome.probe_s for r in study.ledger.records),
    )


def table(name: str, ran: Sequence[Ran]) -> list[str]:
    """A row for each number of slots, and whether the most of them reach what they have to."""
    lines = [
        f"### {name}",
        "",
        "| slots | probes | search ends after, s | probes a minute | regret of the search, %"
        " (mean) | study ends after, s | regret of the result, % (mean) |",
        "|---|---|---|---|---|---|---|",
    ]
    rate: dict[int, float] = {}
    regret: dict[int, float] = {}
    for slots in SLOTS:
        mine = [each for each in ran if each.slots == slots]
        rate[slots] = 60 * sum(e.probes for e in mine) / sum(e.seconds for e in mine)
        regret[slots] = float(np.mean([each.result for each in mine]))
        lines.append(
            f"| {slots} | {np.mean([e.probes for e in mine]):.1f}"
            f" | {np.mean([e.seconds for e in mine]):.0f} | {rate[slots]:.0f}"
            f" | {100 * np.mean([e.regret for e in mine]):.1f}"
            f" | {np.mean([e.whole_s for e in mine]):.0f} | {100 * regret[slots]:.1f} |"
        )
    most = max(SLOTS)
    faster, worse = rate[most] / rate[1], regret[most] - regret[1]
    held = faster >= FASTER and worse <= WORSE
    lines += [
        "",
        f"{most} slots make {faster:.1f} times the probes a minute of one (promised: {FASTER:g}),"
        f" and the regret of the result is {100 * worse:+.1f} points (at most"
        f" {100 * WORSE:+.0f}): {'held' if held else 'not held'}.",
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
