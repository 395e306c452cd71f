"""trials.csv: one flat row per record, search and finals alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from autotune.errors import UsageError
from autotune.result.files import write_whole
from autotune.space.axes import AXES
from autotune.space.outcome import Measurement, Record
from autotune.wire.reports import Peaks, Ran

COUNT, NUMBER, WORD = "Int64", "float64", "string"
"""What a column holds, by pandas' names; a count may be missing."""


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
    # The names above are a contract, in this order; what follows is detail and may grow.
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
        """Make it anew, of `records`. Raises OSError."""
        ordered = sorted(records, key=lambda r: r.outcome.started_s)
        write_whole(self.path, _frame(ordered).to_csv(index=False))


def load_trials(folder: str | Path) -> pd.DataFrame:
    """All trials of the study in `folder`, one row each, as trials.csv has them.

    Sizes are bytes and times seconds. Columns have the types of `COLUMNS`.

    Raises:
        UsageError: there is no study, or its trials cannot be read.
    """
    path = Path(folder) / "trials.csv"
    try:
        return pd.read_csv(path, dtype=COLUMNS, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the folder of a study") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a trials.csv: {error!s:.200}") from error


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    # As objects: beside an unknown value, pandas would write every number of bytes as a float.
    return pd.DataFrame([row(r) for r in records], columns=list(COLUMNS), dtype=object)


def row(record: Record) -> dict[str, object]:
    """`record` under the names of `COLUMNS`, in their order; None where nothing is known."""
    candidate, outcome = record.candidate, record.outcome
    known: dict[str, object] = {
        **asdict(candidate),
        "verdict": outcome.verdict.value,
        "predicted_peak_bytes": outcome.predicted_peak_bytes,
        "predicted_low_bytes": outcome.predicted_low_bytes,
        "predicted_high_bytes": outcome.predicted_high_bytes,
        "started_s": outcome.started_s,
        "probe_s": outcome.probe_s,
        "witness": outcome.witness or None,
        "reason": outcome.reason or None,
        "number": record.number,
        "kind": record.purpose,
        "key": candidate.key,
        "group_start_s": outcome.group_start_s,
        "compile_s": outcome.compile_s,
        "warmup_s": outcome.warmup_s,
        "timed_s": outcome.timed_s,
        "attempts": outcome.attempts,
        "log": outcome.log or None,
        **_measured(outcome.measurement),
        **_peaks(outcome.measurement.peaks if outcome.measurement else outcome.peaks),
    }
    return {name: known.get(name) for name in COLUMNS}


def _measured(measured: Measurement | None) -> dict[str, object]:
    if measured is None:
        return {}
    step, conditions = measured.step, measured.conditions
    return {
        "tokens_per_s": measured.tokens_per_s,
        "samples_per_s": measured.samples_per_s,
        "model_flops_per_s": measured.model_flops_per_s,
        "step_s_median": step.median,
        "step_s_low": step.low,
        "step_s_high": step.high,
        "steps": step.steps,
        "disturbed_share": measured.disturbed_share,
        "kernels": measured.kernels or None,
        "joules_per_token": measured.joules_per_token,
        "sm_clock_mhz": conditions.sm_clock_mhz,
        "power_w": conditions.power_w,
        "temperature_c": conditions.temperature_c,
        "throttle_reasons": conditions.throttle_reasons,
        **_ran(measured.ran),
    }


def _ran(ran: Ran | None) -> dict[str, object]:
    if ran is None:
        return {}
    return {"waiting_share": ran.waiting_share, "tokens": "seen" if ran.seen else "claimed"}


def _peaks(peaks: Peaks | None) -> dict[str, object]:
    if peaks is None:
        return {}
    return {
        "peak_device_bytes": peaks.device_bytes,
        "peak_host_bytes": peaks.host_bytes,
        "peak_reserved_bytes": peaks.reserved_bytes,
        "peak_allocated_bytes": peaks.allocated_bytes,
        "alloc_retries": peaks.alloc_retries,
    }
