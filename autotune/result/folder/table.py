"""trials.csv: one flat row per record, search and finals alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from autotune.errors import UsageError
from autotune.result.files import write_whole
from autotune.space.axes import AXES
from autotune.space.outcome import Record

COUNT, NUMBER, WORD = "Int64", "float64", "string"
"""Types of columns, by pandas' names; a count may be missing."""


def _axes(*, always: bool) -> dict[str, str]:
    return {
        name: WORD if axis.words else COUNT
        for name, axis in AXES.items() if axis.always == always
    }  # fmt: skip


COLUMNS = {
    **_axes(always=True),
    "verdict": WORD, "tokens_per_s": NUMBER, "model_flops_per_s": NUMBER, "step_s_median": NUMBER,
    "peak_device_bytes": COUNT, "peak_host_bytes": COUNT, "predicted_peak_bytes": COUNT,
    "started_s": NUMBER, "probe_s": NUMBER, "witness": WORD, "reason": WORD,
    # The names above are a contract, in this order; the details below may grow.
    "number": COUNT, "kind": WORD, "key": WORD, "group_start_s": NUMBER, "warmup_s": NUMBER,
    "timed_s": NUMBER, "step_s_low": NUMBER, "step_s_high": NUMBER, "steps": COUNT,
    "samples_per_s": NUMBER, "peak_reserved_bytes": COUNT, "peak_allocated_bytes": COUNT,
    "alloc_retries": COUNT, "disturbed_share": NUMBER, "attempts": COUNT, "sm_clock_mhz": COUNT,
    "power_w": NUMBER, "temperature_c": COUNT, "throttle_reasons": COUNT,
    "predicted_low_bytes": COUNT, "predicted_high_bytes": COUNT, **_axes(always=False),
    "compile_s": NUMBER, "kernels": WORD, "waiting_share": NUMBER, "tokens": WORD,
    "joules_per_token": NUMBER, "log": WORD,
}  # fmt: skip
"""Name and type of each."""


class Table:
    """The file, which grows as trials end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, records: Sequence[Record]) -> None:
        """Raises OSError."""
        new = not self.path.exists()
        _frame(records).to_csv(
            self.path, mode="a", header=new, index=False,
            encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip

    def rewrite(self, records: Sequence[Record]) -> None:
        """Write it anew from `records`. Raises OSError."""
        ordered = sorted(records, key=lambda r: r.outcome.started_s)
        write_whole(self.path, _frame(ordered).to_csv(index=False))


def load_trials(folder: str | Path) -> pd.DataFrame:
    """All trials of the study in `folder`, one row each, as trials.csv has them.

    Sizes are bytes and times seconds. Columns have the types of `COLUMNS`. Raises UsageError if
    there is no study, or its trials cannot be read.
    """
    path = Path(folder) / "trials.csv"
    try:
        return pd.read_csv(path, dtype=COLUMNS, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the folder of a study") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a trials.csv: {error!s:.200}") from error


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    # As objects: with one unknown value pandas would make all numbers of a column floats.
    return pd.DataFrame([row(r) for r in records], columns=list(COLUMNS), dtype=object)


def row(record: Record) -> dict[str, object]:
    """`record` by the names of `COLUMNS`; the outcome's fields go before a measurement's."""
    candidate, outcome = record.candidate, record.outcome
    found = outcome.measurement
    known: dict[str, object] = {}
    if found is not None:
        if found.ran is not None:
            known |= vars(found.ran) | {"tokens": "seen" if found.ran.seen else "claimed"}
        known |= vars(found.conditions) | vars(found) | {
            "step_s_median": found.step.median, "step_s_low": found.step.low,
            "step_s_high": found.step.high, "steps": found.step.steps,
        }  # fmt: skip
    if (peaks := found.peaks if found is not None else outcome.peaks) is not None:
        known |= {f"peak_{name}": size for name, size in vars(peaks).items()}
        known["alloc_retries"] = peaks.alloc_retries
    known |= vars(outcome) | vars(candidate)
    known |= {"number": record.number, "kind": record.purpose, "key": candidate.key,
              "verdict": outcome.verdict.value}  # fmt: skip
    return {name: None if known.get(name) == "" else known.get(name) for name in COLUMNS}
