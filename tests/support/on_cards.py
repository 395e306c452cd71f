"""Whole studies on emulated cards."""

from __future__ import annotations

import csv
from pathlib import Path

from autotune.device.emulated.emulation import Emulation
from tests.support.programs import autotune

Row = dict[str, str]


def study(out: Path, *flags: str, on: Emulation | None = None) -> list[Row]:
    """The rows of a study, on cards that are there before it starts, or are its own."""
    temporary = out.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {} if on is None else on.environment
    sampler = () if "--sampler" in flags else ("--sampler", "grid")
    how = ("--budget", "20m", "--finals", "1", *sampler, *flags)
    autotune("--out", out, *how, env=environment | {"TMPDIR": str(temporary)})
    assert not list(temporary.glob("emulated-gpus-*"))
    return list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
