"""The effect of other programs on a study: the main job, alone and beside others.

    .venv/bin/python scripts/bench/disturbed.py [--budget 2m] [--busy 1] [--rounds 1]

Runs the command line on the CPU over the default space: in turn alone, and beside processes that
use a core each. A disturbed study cannot tell a configuration's speed, but it may find the
right one. So the configurations of both are measured again afterwards, in turn, with nothing
beside them. A missed promise is printed; the exit code is always 0.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shared import ROOT, probing, run, say, table, wiring, yes

from autotune.device import open_device
from autotune.measure.testbed.machine import Machine
from autotune.result.best import Best
from autotune.result.folder.table import load_trials
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import step_cost_for
from autotune.study.prober import rule_for
from autotune.units import parse_duration_s
from autotune.wire.stopping import interval

BUSY = "while True: pass"
LEAST_PROBES = 10
CLOSE = 0.9
"""The least speed of the disturbed study's result, as a share of the other's."""
REPEATS = 5
DEADLINE_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one study."""

    busy: int
    elapsed_s: float
    probes: int
    finals: int
    found: Candidate


def main(*, budget: str = "2m", busy: int = 1, rounds: int = 1) -> None:
    rows = []
    with tempfile.TemporaryDirectory(prefix="autotune-disturbed-") as folder:
        for number in range(rounds):
            for processes in (0, busy):
                rows.append(study(Path(folder) / f"{number}-{processes}", budget, processes))
                say(f"{rows[-1]}")
        options = Options.of(budget_s=parse_duration_s(budget, "--budget"), device="cpu")
        speeds = again(sorted({row.found for row in rows}, key=lambda c: c.key), options, folder)
    print(report(rows, speeds))


def study(out: Path, budget: str, busy: int) -> Row:
    """Run the main job beside `busy` processes."""
    command = [sys.executable, "-m", "autotune", "--device", "cpu", "--budget", budget]
    command += ["--learn-from", "none"]
    began = time.monotonic()
    with beside(busy):
        subprocess.run([*command, "--out", str(out)], check=True, stdout=sys.stderr, cwd=ROOT)
    elapsed_s = time.monotonic() - began
    trials = load_trials(out)
    trials = trials[trials["verdict"] != "skipped"]
    finals = int((trials["kind"] == "final").sum())
    return Row(
        busy=busy, elapsed_s=elapsed_s, probes=len(trials) - finals, finals=finals,
        found=Best.read(out / "best.json").config.candidate,
    )  # fmt: skip


@contextmanager
def beside(count: int) -> Iterator[None]:
    """`count` processes that use a core each."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def again(found: Sequence[Candidate], options: Options, folder: str) -> dict[Candidate, float]:
    """Median model FLOP/s of each, measured in turn with nothing beside it."""
    testbed = Machine(open_device("cpu"), "cpu")
    space = testbed.space(options)
    seen: dict[Candidate, list[float]] = {candidate: [] for candidate in found}
    (runner,) = testbed.runners(space, [wiring(Path(folder) / "logs", options.limits.budget_s)])
    with closing(runner):
        for _ in range(REPEATS):
            for candidate in found:
                job = probing(candidate, rule_for("cpu", options), fresh=True)
                with suppress(ValueError):  # the probe failed
                    ended = runner.run(job, time.monotonic() + DEADLINE_S).reported
                    step_s = interval(ended.step_s).median
                    work = step_cost_for(1.0, candidate, space.workload, "flops")
                    seen[candidate].append(work / step_s)
    return {candidate: statistics.median(values) for candidate, values in seen.items() if values}


def report(rows: Sequence[Row], speeds: dict[Candidate, float]) -> str:
    """One line a study, and the promises."""
    shown = (
        (
            row.busy, f"{row.elapsed_s:.0f}", row.probes, row.finals, row.found.key,
            f"{speeds[row.found] / 1e9:.1f}" if row.found in speeds else "",
        )
        for row in rows
    )  # fmt: skip
    disturbed = [row for row in rows if row.busy]
    alone = [row for row in rows if not row.busy]
    least = min(row.probes for row in disturbed)
    ratio = statistics.median(
        speeds[one.found] / speeds[other.found]
        for one, other in zip(disturbed, alone, strict=True)
    )
    promises = [
        ("probes beside a busy process", LEAST_PROBES, least, yes(least >= LEAST_PROBES)),
        ("speed of what was found, of that found alone", f"{CLOSE:.0%}", f"{ratio:.0%}",
         yes(ratio >= CLOSE)),
    ]  # fmt: skip
    head = "busy processes | wall time, s | probes | finals | found | model GFLOP/s"
    return (
        f"{os.cpu_count()} cores; speeds are of {REPEATS} measurements with nothing beside them."
        f"\n\n{table(head, shown)}\n\n{table('promise | at least | measured | held', promises)}"
    )


if __name__ == "__main__":
    run(main)
