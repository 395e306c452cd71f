"""A configuration beside a result: each difference, with its known consequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from autotune.advise.check.reading import AUTO, Finding, Reading
from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.export.format import own_settings
from autotune.space.axes import AXES, OTHER_AXES, SCRIPT_AXES

_FACTS = (
    "micro_batch", "grad_accum", "world_size", "nodes", "seq_len", "zero_stage", "offload",
    "dtype", "checkpointing", "compile", "loss", "base", "optimizer",
)  # fmt: skip
_NEVER = tuple(name for name in OTHER_AXES if name not in (*_FACTS, *SCRIPT_AXES))
"""Facts that files of these tools lack, or have in other words."""


def not_compared(readings: Sequence[Reading], best: Best) -> list[str]:
    """Facts that none of `readings` has, with their values in the result, unless plain there."""
    known = best.known
    missing = [
        name for name in _FACTS
        if (known is None or name in known)
        and all(getattr(each, name) in (None, AUTO) for each in readings)
        and (name != "nodes" or best.config.nodes > 1)
    ]  # fmt: skip
    silent = best.lora is not None and all(each.adapters is None for each in readings)
    lora = [f"lora {best.lora}"] if silent else []
    never = [name for name in _NEVER if known is None or name in known]
    values = {name: getattr(best.config, name) for name in (*missing, *never)}
    said = [
        f"{name} {value}" for name, value in values.items()
        if name not in AXES or value != AXES[name].plain
    ]  # fmt: skip
    own = [] if known is None else ["what the script says itself", *own_settings(best)]
    return [*said, *lora, *own]


def against(
    readings: Sequence[Reading], best: Best, trials: pd.DataFrame | None
) -> Iterator[Finding]:
    """Differences of `readings` and `best`; `trials` are its study's, if known."""
    seen: set[str] = set()
    for name in (*_FACTS, "adapters"):
        if best.known is not None and name not in best.known:
            continue
        for reading in readings:
            value, wanted = getattr(reading, name), _wanted(name, best)
            if value in (None, AUTO) or value == wanted or name in seen:
                continue
            seen.add(name)
            consequence = _consequence(name, value, best, trials)
            differs = f"is {value}, the result has {wanted}{consequence}"
            yield Finding("error", reading.called(name), differs)


def _wanted(name: str, best: Best) -> object:
    if name == "adapters":
        return "none" if best.lora is None else f"r={best.lora.rank}"
    if name == "base" and not best.config.quantized:
        return "not quantized"
    return getattr(best.config, name)


def read_trials(path: Path) -> pd.DataFrame | None:
    """Trials of the study of the best.json in `path`; None if there are none. Raises UsageError if
    they cannot be read."""
    trials = path.parent / "trials.csv"
    if not trials.is_file():
        return None
    try:
        return pd.read_csv(trials)
    except (OSError, ValueError) as error:
        raise UsageError(f"{trials}: not a trials.csv: {error!s:.200}") from error


def _consequence(name: str, value: object, best: Best, trials: pd.DataFrame | None) -> str:
    """The study's measurement of the winner with that one difference."""
    if name in ("grad_accum", "world_size"):
        return "; the batch of an optimizer step differs, and so does the training"
    if name not in AXES:
        return "; speed and memory differ, and were not measured"
    if trials is None or name not in trials:
        return ""
    asked = best.config.candidate
    wanted = {axis: getattr(asked, axis) for axis in AXES if axis in trials} | {name: value}
    rows = trials
    for axis, each in wanted.items():
        rows = rows[rows[axis] == each]
    if rows.empty:
        return "; the study did not try that"
    row = rows.iloc[-1]
    if row.verdict in ("ok", "pruned"):
        share = row.tokens_per_s / best.measured.tokens_per_s
        peak = f"{row.peak_device_bytes / 2**30:.2f} GiB"
        return f": measured at {share:.0%} of its speed, peak {peak}"
    return f": measured {str(row.verdict).replace('_', ' ')}" + (
        f" ({row.reason})" if isinstance(row.reason, str) else ""
    )
