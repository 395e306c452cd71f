"""What a study of many nodes would do: whole studies on a recorded grid, with nodes that are lost.

    .venv/bin/python scripts/bench/scale.py results/grids/cpu-1-rank.csv [--seeds 30]

Real measurements are replayed on a virtual clock; a slot stands for one node, and group starts
take what they took when they were recorded. Nodes are lost at random, `--lost-per-hour` over all
of them: what one ran is put off after a while without a sign of life, and asked for again on
another one. It is back after some minutes, or gone for good, one as often as the other.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from searches.grids import Truth, truth
from searches.samplers import TRACE_S, run_study

from autotune.errors import NoNodesError
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Job, Result, Runner
from autotune.space.candidate import Build
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.wire.budget import VirtualTime

NODES = (1, 4, 16, 64)
CEILINGS = (0.4, 0.6, 0.8)
CLOSE = 0.05
"""Regret at which a search has as good as found the best."""
NOTICED_S = 5.0
"""After which the study knows of a lost node: keepalive, as measured between two hosts."""
BACK_S = 180.0
"""After which a node is back that comes back: a restart."""


class Lossy:
    """A `Runner` whose node is lost now and then."""

    def __init__(self, replay: Replay, now: VirtualTime, rng: random.Random, per_s: float) -> None:
        self._replay = replay
        self._now = now
        self._rng = rng
        self._per_s = per_s
        self._fails = self._next_loss()
        self._gone = False
        self.losses = 0

    @property
    def live_build(self) -> Build | None:
        return self._replay.live_build

    def run(self, job: Job, deadline: float) -> Result:
        if self._gone:
            raise NoNodesError("the node did not come back")
        if self._fails < self._now():  # while it had nothing to do
            return self._lose(deadline)
        result, end = self._now.ahead(lambda: self._replay.run(job, deadline))
        if end < self._fails:
            self._now.pass_until(end)
            return result
        self._now.pass_until(self._fails + NOTICED_S)
        return self._lose(deadline)

    def _lose(self, deadline: float) -> Result:
        self.losses += 1
        self._gone = self._rng.random() < 0.5
        if not self._gone:
            self._now.pass_until(min(deadline, self._fails + BACK_S))
        self._fails = self._next_loss()
        self._replay.retire(deadline)
        return Result(verdict=Verdict.SKIPPED, reason="its node was lost", put_off=True)

    def _next_loss(self) -> float:
        return self._now() + self._rng.expovariate(self._per_s) if self._per_s else math.inf

    def trace(self, space: Space, limit_s: float) -> Trace | None:
        return self._replay.trace(space, limit_s)

    def retire(self, until: float) -> None:
        self._replay.retire(until)

    def kill(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Task:
    """One study to run."""

    path: Path
    ceiling: float
    nodes: int
    seed: int
    lost_per_hour: float


@dataclass(frozen=True)
class Ran:
    """What came of it."""

    nodes: int
    probes: int
    put_off: int
    """Trials that were lost with their nodes."""
    close_s: float
    """Until the search had found something within `CLOSE` of the best; infinite if never."""
    search_s: float
    whole_s: float
    regret: float
    """Of the result."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("grids", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--lost-per-hour", type=float, default=1.0)
    asked = parser.parse_args(arguments)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for path in asked.grids:
            ceilings = [c for c in CEILINGS if truth(path, c).fitting]
            tasks = [
                Task(path, ceiling, nodes, seed, asked.lost_per_hour)
                for nodes in NODES for ceiling in ceilings for seed in range(asked.seeds)
            ]  # fmt: skip
            print("\n".join(table(path, pool.map(run, tasks, chunksize=4))), "\n", flush=True)
    return 0


def run(task: Task) -> Ran:
    """Carry `task` out."""
    known = truth(task.path, task.ceiling)
    options = replace(known.options, seed=task.seed, parallel=task.nodes)
    rng = random.Random(task.seed)

    def runners(known: Truth, now: VirtualTime, options: Options) -> Sequence[Runner]:
        lossy = partial(Lossy, now=now, rng=rng, per_s=task.lost_per_hour / 3600 / task.nodes)
        seeds = range(options.seed, options.seed + task.nodes)
        return [lossy(Replay(known.grid, known.space.limits, now, seed)) for seed in seeds]

    study, watcher = run_study(known, options, runners=runners)
    records, choice = study.ledger.records, study.ledger.choice()
    close = [p.elapsed_s for p in watcher.course if known.regret(p.found) <= CLOSE]
    return Ran(
        nodes=task.nodes,
        probes=len(watcher.course),
        put_off=sum(r.outcome.reason == "its node was lost" for r in records),
        close_s=min(close, default=math.inf) - TRACE_S,
        search_s=watcher.course[-1].elapsed_s - TRACE_S,
        whole_s=max(r.outcome.started_s + r.outcome.probe_s for r in records),
        regret=known.regret(None if choice is None else choice.record.candidate),
    )


def table(path: Path, ran: Sequence[Ran]) -> list[str]:
    """A row for each number of nodes."""
    size = len(truth(path, max(CEILINGS)).space.candidates)
    lines = [
        f"### {path.stem}: {size} candidates",
        "",
        "| nodes | probes | trials put off | within 5 % after, s (median, where it was) | never"
        " | search ends after, s (median) | study ends after, s (median)"
        " | regret of the result, % (mean / 90th percentile) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for nodes in NODES:
        mine = [each for each in ran if each.nodes == nodes]
        close = [each.close_s for each in mine if math.isfinite(each.close_s)]
        regrets = [100 * each.regret for each in mine]
        lines.append(
            f"| {nodes} | {np.mean([e.probes for e in mine]):.1f}"
            f" | {sum(e.put_off for e in mine)} of {len(mine)}"
            f" | {np.median(close):.0f} | {len(mine) - len(close)}"
            f" | {np.median([e.search_s for e in mine]):.0f}"
            f" | {np.median([e.whole_s for e in mine]):.0f}"
            f" | {np.mean(regrets):.1f} / {np.quantile(regrets, 0.9):.1f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
