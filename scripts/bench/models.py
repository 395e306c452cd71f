"""Every kept model's small twin, on every engine: a short study each, and its outcome.

    .venv/bin/pip install -c scripts/constraints.txt -e .
    .venv/bin/python scripts/bench/models.py [--models t5-small,gpt2] [--ranks 1,2] [--budget 60s]

Prints one row for each model, number of ranks and engine: the verdicts of its trials, whether a
final confirmed one, and the seconds of the study. The exit code is always 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

from shared import ROOT, numbers, run, table

from autotune.result.best import Best
from autotune.result.folder.table import load_trials
from autotune.space.models.hf import TINY, ready

ENGINES = {"ddp": "0", "deepspeed": "0,3", "fsdp": "3"}
"""Engines, and the stages to try."""
SMALL = [name for name in ready() if name.endswith(TINY)]
HEAD = "model | ranks | engine | stages | trials | confirmed | s | remark"
REMARK_CHARACTERS = 160


def main(
    *, models: str = ",".join(SMALL),
    ranks: str = "1,2", engines: str = ",".join(ENGINES), budget: str = "60s",
) -> None:  # fmt: skip
    """`models` may have hf:PATH, too; a study has that `budget`."""
    print(f"{os.cpu_count()} cores; a study of {budget} each.\n\n{table(HEAD, [])}")
    for study in product(models.split(","), numbers(ranks), engines.split(",")):
        row = table(HEAD, [tried(*study, budget)]).splitlines()[-1]
        print(row, flush=True)


def tried(model: str, ranks: int, engine: str, budget: str) -> tuple[object, ...]:
    """The row of a study of four trials."""
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
        confirmed = (out / "best.json").exists() and Best.read(out / "best.json").confirmed
        verdicts, remark = Counter[str](), ended.stderr.strip().rpartition("\n")[2]
        if (out / "trials.csv").exists():
            trials = load_trials(out)
            verdicts = Counter(trials["verdict"][trials["kind"] == "search"])
            failed = trials[~trials["verdict"].isin(["ok", "pruned"])]
            remark = " ".join(failed["reason"].fillna("")[:1]) or remark
    if confirmed and set(verdicts) <= {"ok", "pruned"}:
        remark = ""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return (
        model, ranks, engine, ENGINES[engine], counts or "none", "yes" if confirmed else "no",
        f"{wall_s:.0f}", remark[:REMARK_CHARACTERS],
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
