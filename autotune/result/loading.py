"""Results for training scripts and notebooks: `autotune.load_best` and `autotune.load_trials`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from autotune.result.best import Best

_COUNTS = (
    "depth", "seq_len", "micro_batch", "zero_stage", "peak_device_bytes", "peak_host_bytes",
    "predicted_peak_bytes", "number", "steps", "peak_reserved_bytes", "peak_allocated_bytes",
    "alloc_retries", "attempts", "sm_clock_mhz", "temperature_c", "throttle_reasons",
    "predicted_low_bytes", "predicted_high_bytes",
)  # fmt: skip
_WORDS = (
    "offload", "checkpointing", "verdict", "witness", "reason", "kind", "key", "attention",
    "compile", "loss", "optimizer", "param_dtype", "allocator", "kernels", "data_workers",
    "pin_memory", "prefetch", "own", "tokens", "log",
)  # fmt: skip


class OtherHardwareError(UsageError):
    """A result that was measured on other hardware than what is here."""


def load_best(path: str | Path, *, anywhere: bool = False) -> Best:
    """The result in `path`, a best.json or the folder of a study. Imports no torch.

    `best.config.micro_batch` and its neighbours are what a training run takes over.

    Raises:
        UsageError: there is no result that this version can read.
        OtherHardwareError: it was measured on other devices, or another number of them is here
            than it has ranks on a node; not where it is to be used `anywhere`.
    """
    from autotune.result.best import Best
    from autotune.result.hardware import other_hardware

    path = Path(path)
    best = Best.read(path / "best.json" if path.is_dir() else path)
    if not anywhere and (differs := other_hardware(best)):
        raise OtherHardwareError(f"{path}: {differs}; measure again, or pass anywhere=True")
    return best


def load_trials(folder: str | Path) -> pd.DataFrame:
    """All trials of the study in `folder`, one row each, as trials.csv has them.

    Sizes are bytes and times seconds. Counts are of type Int64, which may be missing, words are
    strings, all else is float64.

    Raises:
        UsageError: there is no study, or its trials cannot be read.
    """
    import pandas as pd

    path = Path(folder) / "trials.csv"
    try:
        columns = pd.read_csv(path, nrows=0).columns
        types: dict[str, Any] = dict.fromkeys(columns, "float64")
        types |= dict.fromkeys(set(_COUNTS) & set(columns), "Int64")
        types |= dict.fromkeys(set(_WORDS) & set(columns), "string")
        return pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the folder of a study") from error
    except ValueError as error:
        raise UsageError(f"{path}: is no trials.csv: {error!s:.200}") from error
