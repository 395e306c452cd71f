"""Folders of studies to show: a real one, and possible damages."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.programs import ROOT

SAMPLE = ROOT / "results" / "samples" / "cpu-2-cores"
"""A study of a CPU, without its journal and logs."""
HOSTILE = """</script><img src=x onerror="alert('x')">{{7*7}}&<!--"""
"""A text that would run, or be markup, without escaping."""
Row = dict[str, str]


def folder(at: Path, name: str = "study") -> Path:
    """A copy of the sample."""
    made = at / name
    shutil.copytree(SAMPLE, made)
    (made / "logs").mkdir()
    return made


def change_rows(study: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    """Write trials.csv anew."""
    path = study / "trials.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = change(list(csv.DictReader(file)))
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def change_json(path: Path, **fields: Any) -> None:
    """Other values of fields of a document; None takes a field out."""
    body = json.loads(path.read_text("utf-8")) | fields
    kept = {name: value for name, value in body.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def failed(row: Row, verdict: str, **more: str) -> Row:
    """`row` with another end of its trial."""
    measured = {name: "" for name in row if name.startswith(("tokens_per", "model_", "step_s",
                "samples", "peak_"))}  # fmt: skip
    return row | measured | {"verdict": verdict, **more}


def of_1000_trials(study: Path) -> None:
    """As many rows, of builds that differ, each with a reason and a log."""

    def many(rows: list[Row]) -> list[Row]:
        found = []
        for number in range(1000):
            row = dict(rows[number % 10])
            row |= {
                "number": str(number), "kind": "search", "started_s": str(number),
                "micro_batch": str(1 + number % 61), "log": f"group{number:03d}-rank0.log",
                "checkpointing": ("none", "full", "1/2")[number % 3], "reason": "reason " * 12,
            }  # fmt: skip
            found.append(row if number % 5 else failed(row, "oom"))
            (study / "logs" / row["log"]).write_text(f"line of {number}\n" * 500)
        return found

    change_rows(study, many)
