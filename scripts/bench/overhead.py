"""What a study costs beside its probes: a search on the CPU, held against promises.

    .venv/bin/python scripts/bench/overhead.py [--budget 2m]

Runs the command line in a process of its own, over the default space with the sampler tpe, which
uses the whole budget: the default one ends the search before. Reads its trials.csv and its
resource usage. What a group's start takes with DeepSpeed comes from a second study, of half the
budget. The study's own output goes to stderr, the tables to stdout. A promise that is
missed is printed and changes nothing else: the exit code is 0, since times depend on the machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The study, with its accounts at the end. It is imported first to tell what the imports cost.
CHILD = """
import json, resource, sys
from autotune.commands.app import main
from autotune.study import session
imports = resource.getrusage(resource.RUSAGE_SELF)
code = main(sys.argv[2:])
whole = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[1], "w") as file:
    json.dump({
        "exit_code": int(code),
        "cpu_s": whole.ru_utime + whole.ru_stime,
        "import_cpu_s": imports.ru_utime + imports.ru_stime,
        "peak_rss_bytes": whole.ru_maxrss * 1024,
    }, file)
"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One row of trials.csv that took time."""

    verdict: str
    started_s: float
    """On the study's clock."""
    probe_s: float
    """Wall time from `started_s` on, a group start included."""
    group_start_s: float
    step_s: float
    """Wall time of warm-up and timed steps, of all attempts; 0 where the budget cut it short."""
    attempts: int


@dataclass(frozen=True)
class Accounts:
    """What the study's process said of itself as it ended. CPU time is its own, not its ranks'."""

    exit_code: int
    cpu_s: float
    import_cpu_s: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Row:
    """One line of the table of promises."""

    measure: str
    promised: str
    measured: str
    held: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", default="2m", help="of the study, e.g. 2m (default)")
    budget = parser.parse_args().budget
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wall_s, accounts = run_study(["--sampler", "tpe", "--budget", budget], folder / "ddp")
        if accounts is None or not (folder / "ddp" / "trials.csv").exists():
            print("The study ended without trials: there is nothing to account for.")
            return
        trials = read_trials(folder / "ddp" / "trials.csv")
        options = json.loads((folder / "ddp" / "manifest.json").read_text())["options"]
        half = f"{options['budget_s'] / 2:g}s"
        run_study(["--engine", "deepspeed", "--budget", half], folder / "deepspeed")
        deepspeed = read_trials(folder / "deepspeed" / "trials.csv")
    what = f"Budget {budget}, default space, sampler tpe, CPU: {machine()}"
    print(f"{what}. Exit code {accounts.exit_code}.\n")
    print(promises(trials, accounts, wall_s, options["budget_s"], deepspeed))
    print("\nWhere the wall time went:\n")
    print(breakdown(trials, wall_s))


def run_study(options: Sequence[str], folder: Path) -> tuple[float, Accounts | None]:
    """Wall seconds of a whole study in `folder`, with its process' start, and its accounts."""
    accounts = folder.with_suffix(".json")
    arguments = ["--device", "cpu", *options, "--out", str(folder), "--learn-from", "none"]
    began = time.monotonic()
    # A child starts with its parent's peak memory as its own: nothing large is imported here.
    subprocess.run(
        [sys.executable, "-c", CHILD, str(accounts), *arguments],
        cwd=folder.parent,  # where no pyproject.toml sets other defaults
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=sys.stderr,
        check=False,
    )
    wall_s = time.monotonic() - began
    return wall_s, Accounts(**json.loads(accounts.read_text())) if accounts.exists() else None


def read_trials(path: Path) -> list[Trial]:
    """The trials that took time, in their order. Those skipped unrun are not among them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    trials = [
        Trial(
            verdict=row["verdict"],
            started_s=float(row["started_s"]),
            probe_s=float(row["probe_s"]),
            group_start_s=float(row["group_start_s"]),
            step_s=float(row["warmup_s"]) + float(row["timed_s"]),
            attempts=int(row["attempts"]),
        )
        for row in rows
    ]
    return [trial for trial in trials if trial.probe_s > 0]


def gaps_s(trials: Sequence[Trial]) -> list[float]:
    """Seconds from each trial's end to the next one's start: the study tells, asks and writes."""
    return [
        after.started_s - before.started_s - before.probe_s for before, after in pairwise(trials)
    ]


def starts_s(trials: Sequence[Trial]) -> float:
    """Median start of a group after the first, which waits for the imports of its fork server."""
    started = [trial.group_start_s for trial in trials if trial.group_start_s > 0]
    return statistics.median(started[1:] or started or [math.nan])


def promises(
    trials: Sequence[Trial],
    accounts: Accounts,
    wall_s: float,
    budget_s: float,
    deepspeed: Sequence[Trial],
) -> str:
    """The table of what was promised and what was measured."""
    measured = [trial for trial in trials if trial.verdict != "skipped"]
    probes = max(1, len(measured))
    share = sum(trial.step_s for trial in measured) / wall_s
    gaps = gaps_s(trials) or [0.0]
    gap_ms = statistics.mean(gaps) * 1e3
    cpu_ms = (accounts.cpu_s - accounts.import_cpu_s) / probes * 1e3
    whole_cpu_ms = accounts.cpu_s / probes * 1e3
    rss_mb = accounts.peak_rss_bytes / 1e6
    over_s = wall_s - budget_s
    ddp_s, deepspeed_s = starts_s(measured), starts_s(deepspeed)
    rows = [
        Row("probes run, finals included", "at least 25", str(len(measured)), len(measured) >= 25),
        Row("wall time inside warm-up and timed steps", "at least 85 %", f"{share:.0%}",
            share >= 0.85),
        Row("start of a group with ddp, median", "under 1.0 s", f"{ddp_s:.2f} s", ddp_s < 1.0),
        Row("start of a group with DeepSpeed, median", "under 2.5 s", f"{deepspeed_s:.2f} s",
            deepspeed_s < 2.5),
        Row("study's work between two probes, mean (max) wall time", "at most 20 ms",
            f"{gap_ms:.1f} ms ({max(gaps) * 1e3:.1f} ms)", gap_ms <= 20),
        Row("study's own CPU time per probe, imports left out", "at most 20 ms",
            f"{cpu_ms:.1f} ms", cpu_ms <= 20),
        Row("the same with its imports", "under 30 ms", f"{whole_cpu_ms:.1f} ms",
            whole_cpu_ms < 30),
        Row("study's own peak RSS", "under 250 MB", f"{rss_mb:.0f} MB", rss_mb < 250),
        Row("overshoot of the budget, from process start to exit", "at most 5 s",
            f"{over_s:.1f} s", over_s <= 5),
    ]  # fmt: skip
    lines = [f"| {r.measure} | {r.promised} | {r.measured} | {_word(r.held)} |" for r in rows]
    return "\n".join(["| measure | promised | measured | held |", "|---|---|---|---|", *lines])


def breakdown(trials: Sequence[Trial], wall_s: float) -> str:
    """The table of what the wall time was spent on."""
    in_starts_s = sum(trial.group_start_s for trial in trials)
    steps_s = sum(trial.step_s for trial in trials)
    repeated = sum(trial.attempts > 1 for trial in trials)
    rest_s = sum(trial.probe_s for trial in trials) - in_starts_s - steps_s
    between_s = sum(gaps_s(trials))
    outside_s = wall_s - steps_s - in_starts_s - rest_s - between_s
    groups = sum(trial.group_start_s > 0 for trial in trials)
    parts = [
        ("warm-up and timed steps", steps_s),
        (f"worker group starts, in {groups} probes", in_starts_s),
        (f"rest of the probes, of which {repeated} were repeated", rest_s),
        ("between probes", between_s),
        ("before the first and after the last probe", outside_s),
    ]
    lines = [f"| {name} | {part_s:.1f} s | {part_s / wall_s:.0%} |" for name, part_s in parts]
    return "\n".join(["| part | time | share |", "|---|---|---|", *lines])


def machine() -> str:
    """This machine in general terms."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else 'unknown processor'}, {cores} core{'s' if cores > 1 else ''}"


def _word(held: bool) -> str:
    return "yes" if held else "no"


if __name__ == "__main__":
    main()
