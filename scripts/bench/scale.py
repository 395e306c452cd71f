"""The value of several probes at once: studies of more and more slots on recorded grids.

    .venv/bin/python scripts/bench/scale.py results/grids/cpu-1-rank.csv [--seeds 30]

Every search replays real measurements on a virtual clock, as in `search.py`. Each slot has a
machine of its own, and groups start in the recorded time. A search ends by itself. Regret is the
share by which the best found candidate is below the best that fits. Probes a minute are all probes
over all minutes.

In a second table a slot stands for one node. Nodes are lost at random, `--lost-per-hour` in all. A
lost node's probe is put off after some silence, and runs again on another node.
The node comes back after some minutes, or never, with equal chances.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from searches.grids import Searched, cores, fitting_ceilings, truth
from searches.samplers import TRACE_S, replays, run_study
from shared import run, table

from autotune.errors import NoNodesError
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Job, Result, Runner
from autotune.space.candidate import Build
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.wire.budget import VirtualTime

SLOTS = (1, 2, 4, 8)
NODES = (1, 4, 16, 64)
CEILINGS = (0.4, 0.6, 0.8)
FASTER, WORSE = 5.0, 0.01
"""Goals for the most slots: so many times the probes a minute of one slot, and at most so much
more regret."""
CLOSE = 0.05
"""The regret of a search that is close to the best."""
NOTICED_S = 5.0
"""Seconds until the study knows of a lost node: keepalive, as measured between two hosts."""
BACK_S = 180.0
"""Seconds until a node is back after a restart."""
LOST = "its node was lost"


class Lossy:
    """A `Runner` that sometimes loses its node."""

    def __init__(self, replay: Replay, now: VirtualTime, rng: random.Random, per_s: float) -> None:
        self._replay = replay
        self._now = now
        self._rng = rng
        self._per_s = per_s
        self._fails = self._next_loss()
        self._gone = False

    @property
    def live_build(self) -> Build | None:
        return self._replay.live_build

    def run(self, job: Job, deadline: float) -> Result:
        if self._gone:
            raise NoNodesError("the node did not come back")
        if self._fails < self._now():  # while it was idle
            return self._lose(deadline)
        result, end = self._now.ahead(lambda: self._replay.run(job, deadline))
        if end < self._fails:
            self._now.pass_until(end)
            return result
        self._now.pass_until(self._fails + NOTICED_S)
        return self._lose(deadline)

    def _lose(self, deadline: float) -> Result:
        self._gone = self._rng.random() < 0.5
        if not self._gone:
            self._now.pass_until(min(deadline, self._fails + BACK_S))
        self._fails = self._next_loss()
        self._replay.retire(deadline)
        return Result(verdict=Verdict.SKIPPED, reason=LOST, put_off=True)

    def _next_loss(self) -> float:
        return self._now() + self._rng.expovariate(self._per_s) if self._per_s else math.inf

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        return self._replay.trace(space, limit_s, deadline)

    def retire(self, until: float) -> None:
        self._replay.retire(until)

    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Task:
    """One study to run."""

    path: Path
    ceiling: float
    slots: int
    seed: int
    lost_per_hour: float | None = None
    """Lost nodes per hour, of all; None if slots never fail."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The result of a study."""

    slots: int
    probes: int
    put_off: int
    """Trials that were lost with their nodes."""
    close_s: float
    """Until the search had found something within `CLOSE` of the best; NaN if never."""
    search_s: float
    """Seconds from the first probe's start to the last one's end."""
    whole_s: float
    """Seconds to the end of the finals."""
    found: float
    """Regret of the best candidate of the search."""
    result: float
    """Regret of the result of the whole study."""


def main(*grids: Path, seeds: int = 30, lost_per_hour: float = 1.0) -> None:
    tables = ((SLOTS, None, slots_table), (NODES, lost_per_hour, nodes_table))
    with cores() as pool:
        for path in grids:
            size = len(truth(path, max(CEILINGS)).space.candidates)
            print(f"### {path.stem}: {size} candidates\n")
            for counts, lost, shown in tables:
                tasks = [
                    Task(path, ceiling, slots, seed, lost)
                    for slots in counts
                    for ceiling in fitting_ceilings(path, CEILINGS)
                    for seed in range(seeds)
                ]
                print(shown(pool.map(carried_out, tasks, chunksize=4)), "\n", flush=True)


def carried_out(task: Task) -> Ran:
    """Carry `task` out."""
    known = truth(task.path, task.ceiling)
    options = known.options.but(seed=task.seed, parallel=task.slots)
    rng = random.Random(task.seed)

    def nodes(known: Searched, now: VirtualTime, options: Options) -> Sequence[Runner]:
        if task.lost_per_hour is None:
            return replays(known, now, options)
        lossy = partial(Lossy, now=now, rng=rng, per_s=task.lost_per_hour / 3600 / task.slots)
        seeds = range(options.search.seed, options.search.seed + task.slots)
        return [lossy(Replay(known.grid, known.space.limits, now, seed)) for seed in seeds]

    study, watcher = run_study(known, options, runners=nodes)
    records, choice = study.ledger.records, study.ledger.choice()
    close = [p.elapsed_s for p in watcher.course if known.regret(p.found) <= CLOSE]
    return Ran(
        slots=task.slots,
        probes=len(watcher.course),
        put_off=sum(r.outcome.reason == LOST for r in records),
        close_s=min(close, default=math.nan) - TRACE_S,
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


def nodes_table(ran: Sequence[Ran]) -> str:
    """A row for each number of nodes."""
    rows = [
        (
            nodes, f"{of['probes'].mean():.1f}", f"{of['put_off'].sum()} of {len(of)}",
            f"{of['close_s'].median():.0f}", of["close_s"].isna().sum(),
            f"{of['search_s'].median():.0f}", f"{of['whole_s'].median():.0f}",
            f"{100 * of['result'].mean():.1f} / {100 * of['result'].quantile(0.9):.1f}",
        )
        for nodes, of in pd.DataFrame(ran).groupby("slots")
    ]  # fmt: skip
    head = (
        "nodes | probes | trials put off | within 5 % after, s (median, where it was) | never"
        " | search ends after, s (median) | study ends after, s (median)"
        " | regret of the result, % (mean / 90th percentile)"
    )
    return table(head, rows)


if __name__ == "__main__":
    run(main)
