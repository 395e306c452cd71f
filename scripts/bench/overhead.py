"""The cost of a study beside its probes: a search on the CPU, beside promises.

    .venv/bin/python scripts/bench/overhead.py [--budget 2m]

Runs the command line in a process of its own, over the default space. Its sampler is tpe, which
uses the whole budget; the default one ends earlier. Reads its trials.csv and its resource usage. A
second study, of half the budget, shows starts of groups with DeepSpeed. The study's own output
goes to stderr, the tables to stdout. A missed promise is printed; the exit code is always 0, since
times depend on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from shared import ROOT, machine, run, table, yes

from autotune.result.folder.table import load_trials

# The study, with its accounts at the end. It is imported first to show the cost of imports.
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


@dataclass(frozen=True)
class Accounts:
    """Accounts of the study's process at its end. CPU time is its own, without its ranks."""

    exit_code: int
    cpu_s: float
    import_cpu_s: float
    peak_rss_bytes: int


def main(*, budget: str = "2m") -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wall_s, accounts = run_study(["--sampler", "tpe", "--budget", budget], folder / "ddp")
        if accounts is None or not (folder / "ddp" / "trials.csv").exists():
            print("The study ended without trials: there is nothing to account for.")
            return
        trials = read_trials(folder / "ddp")
        options = json.loads((folder / "ddp" / "manifest.json").read_text())["options"]
        half = f"{options['budget_s'] / 2:g}s"
        run_study(["--engine", "deepspeed", "--budget", half], folder / "deepspeed")
        deepspeed = read_trials(folder / "deepspeed")
    what = f"Budget {budget}, default space, sampler tpe, CPU: {machine()}"
    print(f"{what}. Exit code {accounts.exit_code}.\n")
    print(promises(trials, accounts, wall_s, options["budget_s"], deepspeed))
    print("\nWhere the wall time went:\n")
    print(breakdown(trials, wall_s))


def run_study(options: Sequence[str], folder: Path) -> tuple[float, Accounts | None]:
    """Wall seconds of a whole study in `folder`, its process's start included; and its
    accounts."""
    accounts = folder.with_suffix(".json")
    arguments = ["--device", "cpu", *options, "--out", str(folder), "--learn-from", "none"]
    began = time.monotonic()
    # A child starts with its parent's peak memory, so this process imports no more than the child.
    subprocess.run(
        [sys.executable, "-c", CHILD, str(accounts), *arguments],
        cwd=folder.parent,  # no pyproject.toml there sets other defaults
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=sys.stderr,
        check=False,
    )
    wall_s = time.monotonic() - began
    return wall_s, Accounts(**json.loads(accounts.read_text())) if accounts.exists() else None


def read_trials(folder: Path) -> pd.DataFrame:
    """The trials of a study that ran. `step_s` are seconds of warm-up and timed steps of all
    attempts; 0 if the budget cut a trial short."""
    trials = load_trials(folder)
    trials["step_s"] = trials["warmup_s"] + trials["timed_s"]
    return trials[trials["probe_s"] > 0]


def gaps_s(trials: pd.DataFrame) -> pd.Series[float]:
    """Seconds from each trial's end to the next one's start, in which the study tells, asks and
    writes."""
    return (trials["started_s"].diff() - trials["probe_s"].shift()).dropna()


def starts_s(trials: pd.DataFrame) -> float:
    """Median start of a group after the first, which waits for the imports of its fork server."""
    started = trials["group_start_s"][trials["group_start_s"] > 0]
    return float((started[1:] if len(started) > 1 else started).median())


def promises(
    trials: pd.DataFrame,
    accounts: Accounts,
    wall_s: float,
    budget_s: float,
    deepspeed: pd.DataFrame,
) -> str:
    """The table of promises and measurements."""
    measured = trials[trials["verdict"] != "skipped"]
    count = len(measured)
    share = measured["step_s"].sum() / wall_s
    gaps_ms = gaps_s(trials) * 1e3
    gap_ms, largest_ms = (gaps_ms.mean(), gaps_ms.max()) if len(gaps_ms) else (0.0, 0.0)
    cpu_ms = (accounts.cpu_s - accounts.import_cpu_s) / max(1, count) * 1e3
    whole_cpu_ms = accounts.cpu_s / max(1, count) * 1e3
    rss_mb = accounts.peak_rss_bytes / 1e6
    over_s = wall_s - budget_s
    ddp_s, deepspeed_s = starts_s(measured), starts_s(deepspeed)
    rows = [
        ("probes run, finals included", "at least 25", count, count >= 25),
        ("wall time inside warm-up and timed steps", "at least 85 %", f"{share:.0%}",
         share >= 0.85),
        ("start of a group with ddp, median", "under 1.0 s", f"{ddp_s:.2f} s", ddp_s < 1.0),
        ("start of a group with DeepSpeed, median", "under 2.5 s", f"{deepspeed_s:.2f} s",
         deepspeed_s < 2.5),
        ("study's work between two probes, mean (max) wall time", "at most 20 ms",
         f"{gap_ms:.1f} ms ({largest_ms:.1f} ms)", gap_ms <= 20),
        ("study's own CPU time per probe, imports left out", "at most 20 ms",
         f"{cpu_ms:.1f} ms", cpu_ms <= 20),
        ("the same with its imports", "under 30 ms", f"{whole_cpu_ms:.1f} ms", whole_cpu_ms < 30),
        ("study's own peak RSS", "under 250 MB", f"{rss_mb:.0f} MB", rss_mb < 250),
        ("overshoot of the budget, from process start to exit", "at most 5 s",
         f"{over_s:.1f} s", over_s <= 5),
    ]  # fmt: skip
    shown = ((*cells, yes(held)) for *cells, held in rows)
    return table("measure | promised | measured | held", shown)


def breakdown(trials: pd.DataFrame, wall_s: float) -> str:
    """The table of the wall time by use."""
    probes_s, in_starts_s, steps_s = trials[["probe_s", "group_start_s", "step_s"]].sum()
    between_s = gaps_s(trials).sum()
    repeated, groups = (trials["attempts"] > 1).sum(), (trials["group_start_s"] > 0).sum()
    parts = {
        "warm-up and timed steps": steps_s,
        f"worker group starts, in {groups} probes": in_starts_s,
        f"rest of the probes, of which {repeated} were repeated": probes_s - in_starts_s - steps_s,
        "between probes": between_s,
        "before the first and after the last probe": wall_s - probes_s - between_s,
    }
    rows = ((name, f"{part_s:.1f} s", f"{part_s / wall_s:.0%}") for name, part_s in parts.items())
    return table("part | time | share", rows)


if __name__ == "__main__":
    run(main)
