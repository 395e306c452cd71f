"""Whole studies on emulated cards."""

from __future__ import annotations

import csv
from pathlib import Path

from autotune.commands.exits import ExitCode
from autotune.device.emulated.emulation import Emulation
from tests.support.programs import autotune, stopped

Row = dict[str, str]


def study(
    out: Path, *flags: str, on: Emulation | None = None, trials: int | None = None
) -> list[Row]:
    """The rows of a study, on cards that are there before it starts, or are its own. After so many
    `trials` it is stopped: finals may take longer than its search."""
    temporary = out.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = ({} if on is None else on.environment) | {"TMPDIR": str(temporary)}
    sampler = () if "--sampler" in flags else ("--sampler", "grid")
    how = ("--out", out, "--budget", "20m", "--finals", "1", *sampler, *flags)
    if trials is None:
        autotune(*how, env=environment)
    else:
        code, said = stopped(*how, when=lambda: len(rows(out)) >= trials, env=environment)
        assert code in (ExitCode.FOUND, ExitCode.STOPPED), said
    assert not list(temporary.glob("emulated-gpus-*"))
    return rows(out)


def rows(out: Path) -> list[Row]:
    """The rows of the study in `out`, if it has any."""
    table = out / "trials.csv"
    return list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
