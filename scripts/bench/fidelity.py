"""The fidelity of short probes: probes beside runs of 200 steps.

    .venv/bin/python scripts/bench/fidelity.py [--configs 8] [--steps 200] [-- --depth 2,4 ...]

After `--` come options of `python -m autotune` for space and devices. A study runs first. The
fastest candidates of its search are then probed, trained for long as by `verify`, and probed once
more. All are fresh processes, since a shared machine changes within minutes. Prints a
table in Markdown.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from shared import kept, run, say, table

from autotune.commands.app import main as autotune
from autotune.commands.exits import ExitCode
from autotune.result.best import Best, Verified
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from autotune.result.making import tie_of
from autotune.space.outcome import Verdict
from autotune.study.verify import probing, training, verify
from autotune.wire.reports import Report

PROBE_S = 600.0
GOAL = {"cpu": 0.03, "cuda": 0.01}
"""Median error of throughput."""


@dataclass(frozen=True)
class Row:
    """One configuration."""

    key: str
    probed: tuple[float, float]
    """Tokens/s before and after the long run."""
    probed_peak_bytes: int
    long: Verified

    @property
    def error(self) -> float:
        """Error of the probes' mean, as a share of the long run's throughput."""
        return statistics.mean(self.probed) / (self.long.tokens_per_s or math.nan) - 1


def main(
    *study: Annotated[str, Parameter(allow_leading_hyphen=True)],
    configs: int = 8,
    steps: int = 200,
    minutes: float = 2.0,
) -> int:
    """`study` has its options; a long run takes at most `minutes`."""
    with tempfile.TemporaryDirectory(prefix="autotune-fidelity-") as folder:
        out = Path(folder) / "study"
        if autotune([*study, "--out", str(out)]) != ExitCode.FOUND:
            return 1
        best = Best.read(out / "best.json")
        rows = [long_run(each, steps, minutes, Path(folder), number)
                for number, each in enumerate(fastest(out, best, configs))]  # fmt: skip
    print(report(rows, best))
    return 0


def fastest(folder: Path, best: Best, count: int) -> list[Best]:
    """Results like that of the study in `folder`, each with another winner."""
    study = manifest.read(folder)
    workload, limits = study.workload(), study.limits()
    probed = [r for r in records_in(Folder(folder))
              if r.purpose == "search" and r.outcome.verdict is Verdict.OK]  # fmt: skip
    probed.sort(key=lambda r: -r.measured.model_flops_per_s)
    ties = [tie_of(record, workload, limits) for record in probed[:count]]
    return [replace(best, config=tie.config, measured=tie.measured, exports={}) for tie in ties]


def long_run(best: Best, steps: int, minutes: float, folder: Path, number: int) -> Row:
    def probe(name: str) -> Report:
        with training(best, limit_s=PROBE_S, logs=made(folder, name), note=say) as winner:
            return winner(probing(best), fresh=True)

    before = probe(f"before{number}")
    found = verify(best, steps=steps, limit_s=60 * minutes, logs=made(folder, f"long{number}"),
                   note=say)  # fmt: skip
    after = probe(f"after{number}")
    tokens = best.config.global_batch_tokens
    speeds = [tokens / statistics.median(each.step_s) for each in (before, after)]
    peak_bytes = max(before.peaks.device_bytes, after.peaks.device_bytes)
    return Row(best.config.candidate.key, (speeds[0], speeds[1]), peak_bytes, found)


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def device(best: Best) -> str:
    """The device in general terms."""
    found = best.fingerprint["devices"]
    if best.device_kind == "cpu":
        return f"{found['name']}"
    return str(found["devices"][0]["name"])


def report(rows: Sequence[Row], best: Best) -> str:
    median = statistics.median(abs(row.error) for row in rows)
    apart = statistics.median(abs(row.probed[1] / row.probed[0] - 1) for row in rows)
    over = sum((row.long.peak_bytes or math.inf) > row.long.limit_bytes for row in rows)
    goal = GOAL[best.device_kind]
    head = (
        "candidate | tokens/s, probes | long run | error | peak, probes | long run | drift"
        " | growth"
    )
    shown = (
        (
            row.key, f"{row.probed[0]:.4g}, {row.probed[1]:.4g}", f"{row.long.tokens_per_s:.4g}",
            f"{row.error:+.1%}", f"{row.probed_peak_bytes / 2**20:.0f} MiB",
            f"{(row.long.peak_bytes or math.nan) / 2**20:.0f} MiB",
            f"{row.long.quarters[-1] / row.long.quarters[0] - 1:+.1%}",
            f"{(row.long.growth_bytes_per_100_steps or 0.0) / 2**20:.1f} MiB in 100 steps",
        )
        for row in rows
    )  # fmt: skip
    return (
        f"{device(best)}; {len(rows)} configurations, {rows[0].long.steps} steps or more each."
        f"\n\n{table(head, shown)}\n\n"
        f"Median error of throughput: {median:.1%} (goal: at most {goal:.0%}):"
        f" {kept(median <= goal)}. Over the ceiling: {over} of {len(rows)} (goal: none):"
        f" {kept(not over)}. The two probes of a candidate are {apart:.1%} apart (median):"
        " that much the machine changed."
    )


if __name__ == "__main__":
    run(main)
