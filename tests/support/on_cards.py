"""Whole studies on emulated cards."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from autotune.device.emulated.emulation import Emulation

Row = dict[str, str]


def study(out: Path, *flags: str, on: Emulation | None = None) -> list[Row]:
    """The rows of a study, on cards that are there before it starts, or are its own."""
    temporary = out.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = os.environ if on is None else on.environment
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "--out", str(out), "--budget", "20m", "--finals", "1",
         *(() if "--sampler" in flags else ("--sampler", "grid")), *flags],
        env=environment | {"TMPDIR": str(temporary)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(temporary.glob("emulated-gpus-*"))
    return list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
