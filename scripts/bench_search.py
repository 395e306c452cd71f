"""How good the search is: samplers and other tools' rules on recorded grids, held against truth.

    .venv/bin/python scripts/bench_search.py results/grids/*.csv [--seeds 50] [--png FILE]

Every run replays real measurements (each candidate was measured several times, and one of its
measurements is drawn) on a virtual clock that charges what they took. The truth of a candidate is
the median of its measurements; regret is what the best candidate found lacks of the best that
fits, as a share. The capacity is the largest peak of the grid, so that the ceiling is what binds.

Samplers run in the study's own loop. The rules know no axis but micro_batch (DeepSpeed's also
the stage): they get the ceiling as the point at which memory runs out, and go through the other
axes in random order until the probes are spent. The noise floor is the regret of an oracle that
sees one measurement of every candidate and takes the best.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from autotune.budget import Clock, StopFlag, VirtualTime
from autotune.folder.journal import Journal
from autotune.options import Options
from autotune.outcome import Outcome, Record, Verdict, judge, measurement, others_share
from autotune.predict.trace import Activations
from autotune.replay.device import ReplayDevice
from autotune.replay.runner import Replay
from autotune.runner import Job, Result
from autotune.samplers import adapter as sampler
from autotune.space.space import Candidate, Space, resolve
from autotune.study.study import Study, rule_for
from autotune.wire.messages import Phase, interval

CEILINGS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
PROBES = (4, 6, 8, 12, 20)
MINUTES = (0.5, 1.0, 2.0)
SAMPLERS = ("frontier", "tpe", "gp", "random", "grid")
BUDGET_S = 1800.0
TRACE_S = 9.0
"""When the trace is there: its helper took 5 to 9 s on the machine of the grids."""


@dataclass(frozen=True)
class Point:
    """Where a run stood after a probe."""

    elapsed_s: float
    """Virtual."""
    found: Candidate | None
    """The incumbent."""
    lost: bool
    """The probe ran out of memory or over the ceiling."""
    error: float | None = None
    """How far off the predicted peak was, as a share, where both are known."""


Trace = list[Point]


# What is true of a grid.


class Grid:
    """A recorded grid under one ceiling."""

    def __init__(self, path: Path, ceiling: float) -> None:
        self.device = _device(path)
        rows: dict[Candidate, list[Any]] = defaultdict(list)
        for row in self.device.grid.rows:
            if row.report is not None:
                rows[row.candidate].append(row.report)
        workload = self.device.grid.workload
        self.reports = rows
        self.values = {c: statistics.median(_value(workload, c, r) for r in found)
                       for c, found in rows.items()}  # fmt: skip
        peaks = {c: statistics.median(r.peaks.device_bytes for r in found)
                 for c, found in rows.items()}  # fmt: skip
        capacity = min(math.ceil(max(peaks.values())), self.device.grid.limits.capacity_bytes)
        self.options = Options(
            budget_s=BUDGET_S, capacity_bytes=capacity, ceiling=ceiling, checkpointing=None,
            optimizer=None,
        )  # fmt: skip
        self.space = resolve(self.options, self.device, 0, 0)
        limit = self.space.limits.limit_bytes
        self.fitting = [c for c in self.space.candidates if peaks[c] <= limit]
        self.best = max((self.values[c] for c in self.fitting), default=0.0)

    def regret(self, found: Candidate | None) -> float:
        return 1.0 if found is None else max(0.0, 1 - self.values[found] / self.best)

    def oracle(self, seed: int) -> float:
        """Regret of the best of one measurement of every candidate."""
        rng = random.Random(seed)
        limit = self.space.limits.limit_bytes
        seen: dict[Candidate, float] = {}
        for candidate in self.space.candidates:
            report = rng.choice(self.reports[candidate])
            if report.peaks.device_bytes <= limit:
                seen[candidate] = _value(self.space.workload, candidate, report)
        return self.regret(max(seen, key=lambda c: seen[c], default=None))


@cache
def _device(path: Path) -> ReplayDevice:
    return ReplayDevice(path)


def _value(workload: Any, candidate: Candidate, report: Any) -> float:
    found = measurement(
        candidate, workload, interval(report.step_s), peaks=report.peaks,
        disturbed_share=others_share(report.conditions), conditions=report.conditions,
    )  # fmt: skip
    return found.model_flops_per_s


# Samplers, in the study's own loop.


class _Journal(Journal):
    """Keeps nothing on disk."""

    def __init__(self, proposals: sampler.SpaceSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(sampler=proposals, direction="maximize")

    def _append(self, records: Sequence[Record]) -> None:
        pass


class _Tracer:
    """A reporter that keeps where the search stood."""

    def __init__(self, clock: Clock) -> None:
        self.trace: Trace = []
        self._clock = clock

    def started(self, space: Space, budget_s: float, folder: Path) -> None: ...
    def restored(self, records: Sequence[Record], incumbent: Record | None) -> None: ...
    def probing(self, kind: str, candidate: Candidate) -> None: ...
    def phase(self, phase: Phase, steps: int) -> None: ...
    def note(self, text: str) -> None: ...
    def finished(self, document: dict[str, Any], path: Path) -> None: ...
    def close(self) -> None: ...

    def told(self, record: Record, incumbent: Record | None) -> None:
        verdict = record.outcome.verdict
        if record.kind == "search" and verdict != Verdict.SKIPPED:
            found = None if incumbent is None else incumbent.candidate
            outcome, error = record.outcome, None
            if outcome.measurement is not None and outcome.predicted_peak_bytes is not None:
                peak = outcome.measurement.peaks.device_bytes
                error = abs(outcome.predicted_peak_bytes / peak - 1)
            self.trace.append(Point(self._clock.elapsed_s(), found, verdict.bounds_memory, error))


def sampler_trace(grid: Grid, name: str, seed: int, probes: int) -> Trace:
    """One search by a sampler of the command line."""
    asked = replace(grid.options, sampler=name, seed=seed, trials=probes, finals=1)
    now = VirtualTime()
    clock = Clock(asked.budget_s, now(), now)
    proposals = sampler.make(grid.space, asked, grid.device.kind)
    tracer, stop = _Tracer(clock), StopFlag()

    def traced() -> Activations | None:
        return grid.device.grid.trace if clock.elapsed_s() > TRACE_S else None

    try:
        Study(
            options=asked, space=grid.space, device_kind=grid.device.kind, clock=clock,
            journal=_Journal(proposals), proposals=proposals,
            runner=Replay(grid.device.grid, grid.space.limits, now, seed), reporter=tracer,
            stop=stop, publish=lambda records: None, traced=traced,
        ).run()  # fmt: skip
    finally:
        stop.restore()
    return tracer.trace


# Rules of other tools: each yields candidates and is sent the value measured, None if lost.

Rule = Generator[Candidate, float | None, None]
Ladder = Sequence[Candidate]
"""Candidates that differ in micro_batch alone, ascending."""


def accelerate(ladder: Ladder) -> Rule:
    """`find_executable_batch_size`: from the largest down by a tenth, until it fits.

    Source: accelerate/utils/memory.py, version 1.15.
    """
    batch = ladder[-1].micro_batch
    while fits := [c for c in ladder if c.micro_batch <= batch]:
        if (yield fits[-1]) is not None:
            return
        batch = int(fits[-1].micro_batch * 0.9)


def power(ladder: Ladder) -> Rule:
    """Lightning's `scale_batch_size(mode="power")`: from 2, doubled until it does not fit.

    Source: lightning/pytorch/tuner/batch_size_scaling.py, version 2.6.
    """
    yield from _doubling(ladder)


def bisect(ladder: Ladder) -> Rule:
    """Lightning's `mode="binsearch"`: doubled, then halves of what is between."""
    low, high = yield from _doubling(ladder)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield ladder[middle]) is None:
            high = middle
        else:
            low = middle


def _doubling(ladder: Ladder) -> Generator[Candidate, float | None, tuple[int, int]]:
    """Doubles from 2; returns the places of the last that fitted and the first that did not."""
    low, place = -1, 0
    batch = 2
    while True:
        place = next((i for i, c in enumerate(ladder) if c.micro_batch >= batch), len(ladder))
        if place == len(ladder):
            return low, place
        if (yield ladder[place]) is None:
            return low, place
        low, batch = place, 2 * ladder[place].micro_batch


def deepspeed(stages: Sequence[Ladder]) -> Rule:
    """DeepSpeed's autotuner: stage by stage, the ends of the ladder, then three between.

    Its own estimate of the largest micro-batch is taken to be the axis's end. Source:
    deepspeed/autotuning/autotuner.py, version 0.19.8: `tune_space`,
    `get_min_max_micro_batch_size`, `get_tuning_micro_batch_size_list`.
    """
    previous_most = 0
    for ladder in stages:
        seen: dict[int, float | None] = {}
        low = next((i for i, c in enumerate(ladder) if c.micro_batch >= previous_most), None)
        if low is None:
            return
        seen[low] = yield ladder[low]
        if seen[low] is None:
            return
        high = len(ladder) - 1
        if high not in seen:
            seen[high] = yield ladder[high]
        if seen[high] is None:
            value, left, right = seen[low], low, high
            while left <= right:
                middle = (left + right) // 2
                if middle in seen:
                    left = middle + 1
                    continue
                seen[middle] = now = yield ladder[middle]
                if now is None:
                    right = middle - 1
                    continue
                left = middle + 1
                if value and (now - value) / value < 0.05:
                    break
                value = now
            high = left - 1
        stride = max(1, (high - low) // 3)
        for place in range(low, high + 1, stride):
            if place not in seen:
                seen[place] = yield ladder[place]
        if ladder[high].micro_batch < previous_most:
            return
        previous_most = ladder[high].micro_batch


RULES: dict[str, tuple[Callable[[Any], Rule], bool]] = {
    "accelerate": (accelerate, False), "power": (power, False), "bisect": (bisect, False),
    "deepspeed": (deepspeed, True),
}  # fmt: skip


def rule_trace(grid: Grid, name: str, seed: int, probes: int) -> Trace:
    """One search by a rule: in one cell of the axes that it does not know after the other."""
    rule, knows_stages = RULES[name]
    ladders: dict[Any, list[Candidate]] = defaultdict(list)
    for c in grid.space.candidates:
        ladders[(c.depth, c.seq_len, c.checkpointing, c.zero_stage, c.offload)].append(c)
    cells: dict[Any, list[list[Candidate]]] = defaultdict(list)
    for key, ladder in sorted(ladders.items()):
        cells[key[:3] if knows_stages else key].append(ladder)
    order = sorted(cells)
    random.Random(seed).shuffle(order)
    now = VirtualTime()
    runner = Replay(grid.device.grid, grid.space.limits, now, seed)
    stopping = rule_for(grid.device.kind, BUDGET_S)
    trace: Trace = []
    best: tuple[float, Candidate] | None = None
    for cell in order:
        walk = rule(cells[cell] if knows_stages else cells[cell][0])
        value: float | None = None
        started = False
        while len(trace) < probes:
            try:
                candidate = walk.send(value) if started else next(walk)
            except StopIteration:
                break
            started = True
            accum = grid.space.workload.grad_accum(candidate) or 1
            job = Job(candidate, accum, accum, stopping, None, fresh=False)
            result = runner.run(job, math.inf)
            value = _fitting_value(grid, candidate, result)
            if value is not None and (best is None or value > best[0]):
                best = (value, candidate)
            trace.append(Point(now(), best and best[1], value is None))
    return trace


def _fitting_value(grid: Grid, candidate: Candidate, result: Result) -> float | None:
    if result.report is None:
        return None
    if judge(result.report.peaks, grid.space.limits)[0] != Verdict.OK:
        return None
    return _value(grid.space.workload, candidate, result.report)


# The table.


@dataclass(frozen=True)
class Run:
    """One search: what is left of it."""

    method: str
    regrets: dict[int, float]
    """After so many probes."""
    by_minute: dict[float, float]
    lost: float
    """Share of its probes."""
    probes: int
    errors: tuple[float, ...]
    """Of predicted peaks, after the fourth probe."""


def run(task: tuple[Path, float, str, int]) -> Run:
    path, ceiling, method, seed = task
    grid = _grid(path, ceiling)
    make = rule_trace if method in RULES else sampler_trace
    trace = make(grid, method, seed, max(PROBES))

    def after(count: int) -> float:
        return grid.regret(trace[min(count, len(trace)) - 1].found if trace else None)

    def within(seconds: float) -> float:
        done = [p for p in trace if p.elapsed_s <= seconds]
        return grid.regret(done[-1].found if done else None)

    return Run(
        method, {n: after(n) for n in PROBES}, {m: within(60 * m) for m in MINUTES},
        sum(p.lost for p in trace) / max(1, len(trace)), len(trace),
        tuple(p.error for p in trace[4:] if p.error is not None),
    )  # fmt: skip


@cache
def _grid(path: Path, ceiling: float) -> Grid:
    return Grid(path, ceiling)


def percent(values: Sequence[float]) -> str:
    """Median and 90th percentile."""
    return f"{100 * np.median(values):.1f} / {100 * np.quantile(values, 0.9):.1f}"


def table(runs: Sequence[Run], floor: Sequence[float]) -> list[str]:
    methods = [name for name in (*SAMPLERS, *RULES) if any(r.method == name for r in runs)]
    of = {name: [r for r in runs if r.method == name] for name in methods}
    lines = ["| regret, % (median / 90th percentile) | " + " | ".join(methods) + " |",
             "|---|" + "---|" * len(methods)]  # fmt: skip
    for count in PROBES:
        cells = [percent([r.regrets[count] for r in of[name]]) for name in methods]
        lines.append(f"| after {count} probes | " + " | ".join(cells) + " |")
    for minutes in MINUTES:
        cells = [percent([r.by_minute[minutes] for r in of[name]]) for name in methods]
        lines.append(f"| after {minutes:g} virtual minutes | " + " | ".join(cells) + " |")
    lost = [f"{100 * np.mean([r.lost for r in of[name]]):.0f} %" for name in methods]
    lines.append("| probes lost to memory | " + " | ".join(lost) + " |")
    probes = [f"{np.median([r.probes for r in of[name]]):.0f}" for name in methods]
    lines.append("| probes until it stopped by itself, at most 20 | " + " | ".join(probes) + " |")
    searches = [str(len(of[name])) for name in methods]
    lines.append("| searches | " + " | ".join(searches) + " |")
    lines.append("")
    errors = [error for r in of.get("frontier", []) for error in r.errors]
    if errors:
        lines.append(
            f"After four probes frontier predicts peaks to {np.median(errors):.1%} (median)."
        )
    lines.append(
        f"Noise floor (an oracle with one measurement of every candidate): {percent(floor)}."
    )
    return lines


def promises(runs: Sequence[Run], floor: Sequence[float]) -> list[str]:
    """What the default sampler has to reach, and what it did."""
    mine = [r for r in runs if r.method == "frontier"]

    def at(count: int, quantile: float, of: Sequence[Run] = mine) -> float:
        return float(np.quantile([r.regrets[count] for r in of], quantile))

    middle, upper = float(np.median(floor)), float(np.quantile(floor, 0.9))
    lost = float(np.mean([r.lost for r in mine]))
    rows = [
        ("median regret after 6 probes", 0.05, at(6, 0.5)),
        ("median regret after 12 probes", max(0.02 if middle >= 0.005 else 0.01, middle + 0.01),
         at(12, 0.5)),
        ("90th percentile after 12 probes", max(0.06, upper + 0.01), at(12, 0.9)),
        ("probes lost to memory", 0.1, lost),
    ]  # fmt: skip
    lines = ["| promise | at most | measured | held |", "|---|---|---|---|"]
    for what, most, found in rows:
        held = "yes" if found <= most else "no"
        lines.append(f"| {what} | {most:.1%} | {found:.1%} | {held} |")
    others = {r.method for r in runs} - {"frontier"}
    behind = [
        f"{name} after {count}" for count in PROBES for name in sorted(others)
        if at(count, 0.5, [r for r in runs if r.method == name]) < at(count, 0.5)
    ]  # fmt: skip
    lines.append(f"| ahead of every other column | | {', '.join(behind) or 'all'} |"
                 f" {'no' if behind else 'yes'} |")  # fmt: skip
    return lines


def plot(all_runs: dict[str, list[Run]], floors: dict[str, list[float]], path: Path) -> None:
    """Median regret over probes, one panel a grid."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(all_runs), figsize=(6 * len(all_runs), 4), squeeze=False)
    for axis, (name, runs) in zip(axes[0], all_runs.items(), strict=True):
        for method in (*SAMPLERS, *RULES):
            mine = [r for r in runs if r.method == method]
            if mine:
                middle = [100 * np.median([r.regrets[n] for r in mine]) for n in PROBES]
                width = 2.5 if method == "frontier" else 1.0
                axis.plot(PROBES, middle, marker="o", markersize=3, linewidth=width, label=method)
        axis.axhline(100 * np.median(floors[name]), color="grey", linestyle=":", label="floor")
        axis.set(title=name, xlabel="probes", ylabel="median regret, %", xticks=PROBES)
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def ask_seconds(size: int = 10_000, told: int = 20) -> float:
    """Median time of one `ask` over a space of `size` candidates with `told` trials."""
    options = Options(
        depth=tuple(range(2, 12)), seq_len=(256, 512, 1024, 2048, 4096),
        micro_batch=tuple(range(1, size // 100 + 1)), device="cpu",
    )  # fmt: skip
    from autotune.device.cpu import CpuDevice

    space = resolve(options, CpuDevice(), 2**40, 2)
    proposals = sampler.FrontierSampler(space, "cpu", "flops")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=proposals, direction="maximize")
    took: list[float] = []
    for number in range(told):
        began = time.perf_counter()
        trial = study.ask(proposals.distributions)
        took.append(time.perf_counter() - began)
        candidate = Candidate(**trial.params)
        proposals.close(candidate)
        trial.set_user_attr("outcome", _made_up(space, candidate))
        study.tell(trial, float(number))
    return statistics.median(took[told // 2 :])


def _made_up(space: Space, candidate: Candidate) -> Any:
    from dataclasses import asdict

    from autotune.wire.messages import Conditions, Interval, Peaks

    step_s = 1e-3 * (candidate.tokens + 200)
    peaks = Peaks(*[2**20 * candidate.tokens] * 5, 0)
    quiet = Conditions(1.0, 1.0, 0.0, 1.0, None, None, None, None, False)
    found = measurement(
        candidate, space.workload, Interval(step_s, step_s, step_s, 9),
        peaks=peaks, disturbed_share=0.0, conditions=quiet,
    )  # fmt: skip
    return asdict(Outcome(Verdict.OK, measurement=found))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("grids", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--gp-seeds", type=int, default=5, help="gp takes a second a search")
    parser.add_argument("--methods", default=",".join((*SAMPLERS, *RULES)))
    parser.add_argument("--png", type=Path)
    asked = parser.parse_args(arguments)
    all_runs: dict[str, list[Run]] = {}
    floors: dict[str, list[float]] = {}
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for path in asked.grids:
            ceilings = [c for c in CEILINGS if _grid(path, c).fitting]
            tasks = [
                (path, ceiling, method, seed)
                for method in asked.methods.split(",")
                for ceiling in ceilings
                for seed in range(asked.gp_seeds if method == "gp" else asked.seeds)
            ]
            runs = pool.map(run, tasks, chunksize=8)
            floor = [_grid(path, c).oracle(seed) for c in ceilings for seed in range(asked.seeds)]
            all_runs[path.stem], floors[path.stem] = runs, floor
            grid = _grid(path, 0.8)
            left_out = len(CEILINGS) - len(ceilings)
            print(f"### {path.stem}\n")
            print(
                f"{len(grid.space.candidates)} candidates, {len(grid.device.grid.rows)}"
                f" measurements, {grid.device.grid.device}; ceilings"
                f" {', '.join(f'{c:.0%}' for c in ceilings)}"
                + (f" ({left_out} more left nothing that fits)" if left_out else "")
                + ".\n"
            )
            print("\n".join(table(runs, floor)), "\n")
            print("\n".join(promises(runs, floor)), "\n", flush=True)
    print(
        f"One ask over 10 000 candidates takes {1e3 * ask_seconds():.0f} ms (promised: under 50)."
    )
    if asked.png is not None:
        plot(all_runs, floors, asked.png)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
