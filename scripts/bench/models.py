"""Every kept model's small twin, on every engine: a short study each, and what came of it.

    .venv/bin/pip install -c scripts/constraints.txt -e .
    .venv/bin/python scripts/bench/models.py [--models t5-small,gpt2] [--ranks 1,2] [--budget 60s]

Prints one row a model, number of ranks and engine: the verdicts of its trials, whether a final
confirmed one, and the seconds of the study. The exit code is 0 whatever comes out.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.result.best import Best
from autotune.space.models.hf import TINY, ready

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"ddp": "0", "deepspeed": "0,3", "fsdp": "3"}
"""And the stages to try."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of one study."""

    model: str
    ranks: int
    engine: str
    verdicts: Counter[str]
    confirmed: bool
    wall_s: float
    said: str
    """By the study, where there is no result."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    small = [name for name in ready() if name.endswith(TINY)]
    parser.add_argument("--models", default=",".join(small), help="also hf:PATH")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--budget", default="60s")
    asked = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores; a study of {asked.budget} each.\n")
    print("| model | ranks | engine | stages | trials | confirmed | s | remark |")
    print("|---|---|---|---|---|---|---|---|")
    for model in asked.models.split(","):
        for ranks in map(int, asked.ranks.split(",")):
            for engine in asked.engines.split(","):
                print(row(tried(model, ranks, engine, asked.budget)), flush=True)
    return 0


def tried(model: str, ranks: int, engine: str, budget: str) -> Tried:
    """Run a study of four trials."""
    with tempfile.TemporaryDirectory(prefix="autotune-try-") as folder:
        out = Path(folder) / "study"
        command = [
            sys.executable, "-m", "autotune", "--device", "cpu", "--model", model,
            "--world-size", str(ranks), "--engine", engine, "--zero", ENGINES[engine],
            "--seq-len", "32", "--micro-batch", "1,2", "--trials", "4", "--finals", "1",
            "--budget", budget, "--learn-from", "none", "--out", str(out),
        ]  # fmt: skip
        began = time.monotonic()
        ended = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall_s = time.monotonic() - began
        trials = []
        if (out / "trials.csv").exists():
            with (out / "trials.csv").open(newline="") as file:
                trials = list(csv.DictReader(file))
        best = Best.read(out / "best.json") if (out / "best.json").exists() else None
        reasons = [each["reason"] for each in trials if each["verdict"] not in ("ok", "pruned")]
    said = " ".join(reasons[:1]) or ended.stderr.strip().rpartition("\n")[2]
    return Tried(
        model=model, ranks=ranks, engine=engine,
        verdicts=Counter(each["verdict"] for each in trials if each["kind"] == "search"),
        confirmed=best is not None and best.confirmed, wall_s=wall_s, said=said,
    )  # fmt: skip


def row(of: Tried) -> str:
    """A line of the table."""
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(of.verdicts.items()))
    remark = "" if of.confirmed and set(of.verdicts) <= {"ok", "pruned"} else of.said
    return (
        f"| {of.model} | {of.ranks} | {of.engine} | {ENGINES[of.engine]} | {verdicts or 'none'}"
        f" | {'yes' if of.confirmed else 'no'} | {of.wall_s:.0f} |"
        f" {re.sub(r'[|]', ' ', remark)[:160]} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
