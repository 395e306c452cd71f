"""How well a short probe stands for training: probes beside runs of 200 steps.

    .venv/bin/python scripts/bench_fidelity.py [--configs 8] [--steps 200] [-- --depth 2,4 ...]

What follows `--` are options of `python -m autotune` that describe space and devices. A study is
run first. Of its candidates that fitted, those with the largest peaks are trained again in fresh
processes, as `verify` does it. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.commands.app import main as autotune
from autotune.commands.exits import ExitCode
from autotune.result.best import Best, Cell, Tie, Verified
from autotune.study.verify import verify

GOAL = {"cpu": 0.03, "cuda": 0.01}
"""Median error of throughput."""


@dataclass(frozen=True)
class Row:
    """One configuration."""

    key: str
    probed: float
    """Tokens/s."""
    probed_peak_bytes: int
    long: Verified


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--configs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each long run, at most")
    split = list(arguments).index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:split])
    with tempfile.TemporaryDirectory(prefix="autotune-fidelity-") as folder:
        out = Path(folder) / "study"
        if autotune([*arguments[split + 1 :], "--out", str(out)]) != ExitCode.FOUND:
            return 1
        best = Best.read(out / "best.json")
        rows = [long_run(each, asked.steps, asked.minutes, Path(folder), number)
                for number, each in enumerate(near_frontier(best, asked.configs))]  # fmt: skip
    print("\n".join(report(rows, best)))
    return 0


def near_frontier(best: Best, count: int) -> list[Best]:
    """Results of which each has another configuration as its winner: the winner, what tied with
    it, and the best of each depth and length, those with the largest peaks first."""
    found = {best.config.candidate: (best.config, best.measured)}
    others: tuple[Tie | Cell, ...] = (*best.ties, *best.cells)
    for each in others:
        found.setdefault(each.config.candidate, (each.config, each.measured))
    ordered = sorted(found.values(), key=lambda pair: -pair[1].peak_bytes.device)
    return [replace(best, config=config, measured=measured, exports={})
            for config, measured in ordered[:count]]  # fmt: skip


def long_run(best: Best, steps: int, minutes: float, folder: Path, number: int) -> Row:
    logs = folder / f"logs{number}"
    logs.mkdir()
    found = verify(best, steps=steps, limit_s=60 * minutes, logs=logs,
                   note=lambda text: print(text, file=sys.stderr))  # fmt: skip
    return Row(
        best.config.candidate.key,
        best.measured.tokens_per_s,
        best.measured.peak_bytes.device,
        found,
    )


def device(best: Best) -> str:
    """In general terms."""
    found = best.fingerprint["devices"]
    if best.device_kind == "cpu":
        return f"{found['name']}, {found['cores']} cores"
    return str(found["devices"][0]["name"])


def report(rows: Sequence[Row], best: Best) -> list[str]:
    errors = [row.probed / row.long.tokens_per_s - 1 for row in rows]
    median = statistics.median(map(abs, errors))
    over = sum(row.long.peak_bytes > row.long.limit_bytes for row in rows)
    goal = GOAL[best.device_kind]
    lines = [
        f"{device(best)}; {len(rows)} configurations, {rows[0].long.steps} steps or more each.",
        "",
        "| candidate | tokens/s, probe | long run | error | peak, probe | long run | drift |"
        " growth |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row, error in zip(rows, errors, strict=True):
        found = row.long
        lines.append(
            f"| {row.key} | {row.probed:.4g} | {found.tokens_per_s:.4g} | {error:+.1%} |"
            f" {row.probed_peak_bytes / 2**20:.0f} MiB | {found.peak_bytes / 2**20:.0f} MiB |"
            f" {found.quarters[-1] / found.quarters[0] - 1:+.1%} |"
            f" {found.growth_bytes_per_100_steps / 2**20:.1f} MiB in 100 steps |"
        )
    return [
        *lines, "",
        f"Median error of throughput: {median:.1%} (goal: at most {goal:.0%}):"
        f" {'held' if median <= goal else 'missed'}. Over the ceiling: {over} of {len(rows)}"
        f" (goal: none): {'held' if not over else 'missed'}.",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
