"""The value of several probes at once: studies of more and more slots on recorded grids.

    .venv/bin/python scripts/bench/scale.py results/grids/cpu-1-rank.csv [--seeds 30]

Every search replays real measurements on a virtual clock, as in `search.py`. Each slot has a
machine of its own, and groups start in the recorded time. A search ends by itself. Regret is the
share by which the best found candidate is below the best that fits. Probes a minute are all probes
over all minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from searches.grids import cores, fitting_ceilings, truth
from searches.samplers import TRACE_S, run_study
from shared import run, table

SLOTS = (1, 2, 4, 8)
CEILINGS = (0.4, 0.6, 0.8)
FASTER, WORSE = 5.0, 0.01
"""Goals for the most slots: so many times the probes a minute of one slot, and at most so much
more regret."""


@dataclass(frozen=True)
class Task:
    """One study to run."""

    path: Path
    ceiling: float
    slots: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The result of a study."""

    slots: int
    probes: int
    search_s: float
    """Seconds from the first probe's start to the last one's end."""
    whole_s: float
    """Seconds to the end of the finals."""
    found: float
    """Regret of the best candidate of the search."""
    result: float
    """Regret of the result of the whole study."""


def main(*grids: Path, seeds: int = 30) -> None:
    with cores() as pool:
        for path in grids:
            size = len(truth(path, max(CEILINGS)).space.candidates)
            print(f"### {path.stem}: {size} candidates\n")
            tasks = [
                Task(path, ceiling, slots, seed)
                for slots in SLOTS
                for ceiling in fitting_ceilings(path, CEILINGS)
                for seed in range(seeds)
            ]
            print(slots_table(pool.map(carried_out, tasks, chunksize=4)), "\n", flush=True)


def carried_out(task: Task) -> Ran:
    """Carry `task` out."""
    known = truth(task.path, task.ceiling)
    study, watcher = run_study(known, known.options.but(seed=task.seed, parallel=task.slots))
    records, choice = study.ledger.records, study.ledger.choice()
    return Ran(
        slots=task.slots,
        probes=len(watcher.course),
        search_s=watcher.course[-1].elapsed_s - TRACE_S,
        whole_s=max(r.outcome.started_s + r.outcome.probe_s for r in records),
        found=known.regret(watcher.course[-1].found),
        result=known.regret(None if choice is None else choice.record.candidate),
    )


def slots_table(ran: Sequence[Ran]) -> str:
    """A row for each number of slots, and whether the most slots reach the goals."""
    mean = pd.DataFrame(ran).groupby("slots").mean()
    mean["rate"] = 60 * mean["probes"] / mean["search_s"]
    rows = [
        (
            slots, f"{of['probes']:.1f}", f"{of['search_s']:.0f}", f"{of['rate']:.0f}",
            f"{100 * of['found']:.1f}", f"{of['whole_s']:.0f}", f"{100 * of['result']:.1f}",
        )
        for slots, of in mean.iterrows()
    ]  # fmt: skip
    one, most = mean.loc[1], mean.loc[max(SLOTS)]
    faster, worse = most["rate"] / one["rate"], most["result"] - one["result"]
    held = faster >= FASTER and worse <= WORSE
    head = (
        "slots | probes | search ends after, s | probes a minute | regret of the search, % (mean)"
        " | study ends after, s | regret of the result, % (mean)"
    )
    return (
        f"{table(head, rows)}\n\n{max(SLOTS)} slots make {faster:.1f} times the probes a minute of"
        f" one (promised: {FASTER:g}), and the regret of the result is {100 * worse:+.1f} points"
        f" (at most {100 * WORSE:+.0f}): {'held' if held else 'not held'}."
    )


if __name__ == "__main__":
    run(main)
