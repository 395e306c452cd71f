"""trials.csv: one flat row per record, search and finals alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from autotune.result.files import write_whole
from autotune.space.axes import ASKED_AXES
from autotune.space.outcome import Measurement, Record
from autotune.wire.messages import Peaks, Ran

COLUMNS = (
    "depth", "seq_len", "micro_batch", "zero_stage", "offload", "checkpointing",
    "verdict", "tokens_per_s", "model_flops_per_s", "step_s_median", "peak_device_bytes",
    "peak_host_bytes", "predicted_peak_bytes", "started_s", "probe_s", "witness", "reason",
    # The names above are a contract, in this order; what follows is detail and may grow.
    "number", "kind", "key", "group_start_s", "warmup_s", "timed_s", "step_s_low", "step_s_high",
    "steps", "samples_per_s", "peak_reserved_bytes", "peak_allocated_bytes", "alloc_retries",
    "disturbed_share", "attempts", "sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons",
    "predicted_low_bytes", "predicted_high_bytes", *ASKED_AXES, "compile_s", "kernels",
    "waiting_share", "tokens",
    "joules_per_token", "log",
)  # fmt: skip


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
