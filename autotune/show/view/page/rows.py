"""The table of all trials, and the ends of their logs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.show.report.objective import SCALES
from autotune.show.report.text import si
from autotune.show.view.study import GIB, Shown
from autotune.space.outcome import Verdict

LOG_TAIL, LOGS = 2000, 400_000
"""The most characters of one log, and of all logs."""


@dataclass(frozen=True)
class TrialCell:
    text: str
    sort: float | None = None
    """The number to sort by; None to sort by text."""
    style: str = ""
    log: str = ""


def columns(study: Shown) -> list[str]:
    """Names of the cells of `trial`."""
    return ["no", "kind", *(axis.label for axis in study.axes), "verdict",
            *(SCALES[name][1] for name in study.rates), "step, ms", "peak, GiB", "of capacity",
            "predicted, GiB", "began, s", "took, s", "log", "reason"]  # fmt: skip


def trial(study: Shown, row: dict[Any, Any], logs: dict[str, str]) -> dict[str, Any]:
    """A row of the table, with its log if that is one of `logs`."""
    log = _log_of(row)
    capacity_gib = study.limits.capacity_bytes / GIB
    peak = row["peak_device_gib"]
    return {
        "verdict": row["verdict"],
        "cells": [
            _number(row["number"], "d"),
            TrialCell(row["kind"], style="words"),
            *(TrialCell(str(row[axis.name]), style="words") if axis.words
              else _number(row[axis.name], "d") for axis in study.axes),
            TrialCell(row["verdict"], style="words"),
            *(_number(row[SCALES[name][0]], "si") for name in study.rates),
            _number(_scaled(row["step_s_median"], 1e3), ".4g"),
            _number(peak, ".3f"),
            _number(_scaled(peak, 1 / capacity_gib), ".0%"),
            _number(row["predicted_peak_gib"], ".3f"),
            _number(row["started_s"], ".1f"),
            _number(row["probe_s"], ".1f"),
            TrialCell(log, style="words", log=log if log in logs else ""),
            TrialCell("" if pd.isna(row["reason"]) else str(row["reason"]), style="long"),
        ],
    }  # fmt: skip


def _scaled(value: Any, factor: float) -> float:
    return math.nan if pd.isna(value) else float(value) * factor


def _number(value: Any, format: str) -> TrialCell:
    if pd.isna(value):
        return TrialCell("")
    number = float(value)
    if format == "si":
        return TrialCell(si(number), number)
    return TrialCell(f"{int(number) if format == 'd' else number:{format}}", number)


def _log_of(row: dict[Any, Any]) -> str:
    """Name of a trial's log: of its reason, else its group's; a path for another process's."""
    if "/" in str(row["log"]):
        return str(row["log"])
    reason = "" if pd.isna(row["reason"]) else str(row["reason"])
    named = [word.rstrip(".,;:)") for word in reason.split() if ".log" in word]
    return named[-1] if named else ("" if pd.isna(row["log"]) else str(row["log"]))


def log_tails(study: Shown) -> dict[str, str]:
    """The tails of logs by name, those of failures first, within `LOGS` characters."""
    rows = study.trials.to_dict("records")
    fits = {verdict.value for verdict in Verdict if verdict.fits}
    rows.sort(key=lambda row: row["verdict"] in fits)
    tails: dict[str, str] = {}
    room = LOGS
    for name in dict.fromkeys(_log_of(row) for row in rows):
        path = study.folder.logs / name
        if room <= 0 or not name or path.parent != study.folder.logs:
            continue
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4 * LOG_TAIL))
                tail = file.read().decode("utf-8", "replace")[-LOG_TAIL:]
        except (OSError, ValueError):  # the name may be impossible
            continue
        if tail.strip():
            tails[name] = tail
            room -= len(tail)
    return tails
