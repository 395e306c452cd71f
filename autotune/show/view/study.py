"""A study's folder, read to be shown; nothing is written there."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.errors import UsageError
from autotune.result.best import Best
from autotune.result.files import is_held
from autotune.result.folder import manifest
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import past_in
from autotune.result.folder.manifest import Manifest
from autotune.result.folder.past import Past
from autotune.result.folder.table import COLUMNS, WORD
from autotune.show.report.objective import SCALES
from autotune.show.report.text import shown_axes
from autotune.space.axes import AXES
from autotune.space.outcome import Verdict
from autotune.space.space import Limits
from autotune.space.workload import Workload
from autotune.wire.settings import Axis

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The content of a study's folder."""

    folder: Folder
    manifest: Manifest
    limits: Limits
    workload: Workload
    trials: pd.DataFrame
    """trials.csv with further columns: see `_with_more`."""
    best: Best | None
    past: Past | None
    """The journal's content; None without a journal."""
    running: bool
    """Whether a process holds the folder now."""

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def title(self) -> str:
        """Model, devices, and time of the begin."""
        began = self.past.began if self.past is not None else ""
        return f"{self.model} on {self.devices}" + (f", {began}" if began else "")

    @property
    def model(self) -> str:
        if self.workload.of_script:
            return self.workload.model
        return str(self.manifest.options.get("model", self.workload.model))

    @property
    def devices(self) -> str:
        """The devices of the measurements, in words."""
        fingerprint = self.manifest.fingerprint
        found = fingerprint.get("devices") or {}
        first = (found.get("devices") or [found])[0]
        name = str(first.get("name", fingerprint.get("kind", "")))
        ranks, nodes = self.workload.world_size, self.workload.nodes
        several = f"{ranks} x {name}" if ranks > 1 and found.get("devices") else name
        return several + (f" on {nodes} nodes" if nodes > 1 else "")

    @property
    def objective(self) -> str:
        return str(self.manifest.options["objective"])

    @property
    def unit(self) -> str:
        return SCALES[self.objective][1]

    @property
    def lack(self) -> str:
        """Why there is no result; empty if there is one."""
        if self.best is not None:
            return ""
        ended = self.past.ended if self.past is not None else None
        if ended is not None and ended.message:
            return ended.message
        if self.running:
            return "nothing has been found yet"
        return "the study was interrupted before anything fitted"

    @property
    def rates(self) -> list[str]:
        """The rates to show: the objective, and tokens/s."""
        return list(dict.fromkeys([self.objective, "tokens_per_s"]))

    @property
    def budget_s(self) -> float:
        known = self.past.budget_s if self.past is not None else None
        return known or float(self.manifest.options["budget_s"])

    @property
    def elapsed_s(self) -> float:
        """The elapsed seconds, as far as known."""
        told_s: float = (
            self.best.provenance.get("elapsed_s", 0.0) if self.best is not None else 0.0
        )
        spent_s = self.past.spent_s if self.past is not None else 0.0
        return float(max([told_s, spent_s, *self.trials["ended_s"].dropna()]))

    @property
    def ran(self) -> pd.DataFrame:
        """Trials and finals that were not skipped."""
        return self.trials[self.trials["verdict"] != Verdict.SKIPPED]

    @property
    def measured(self) -> pd.DataFrame:
        """Trials and finals that fitted and were timed."""
        fits = self.trials["verdict"].isin([verdict.value for verdict in Verdict if verdict.fits])
        return self.trials[fits & self.trials["value"].notna()]

    @cached_property
    def counts(self) -> dict[Verdict, int]:
        """Trials of the search by verdict."""
        found = self.trials.loc[self.trials["kind"] == "search", "verdict"].value_counts()
        return {verdict: int(found.get(verdict.value, 0)) for verdict in Verdict}

    @cached_property
    def axes(self) -> list[Axis]:
        """Axes in which the trials differ."""
        values = {name: set(self.trials[name].dropna()) for name in AXES}
        return shown_axes(values, of_script=self.workload.of_script)


def read(path: Path) -> Shown:
    """The study in the folder `path`. Raises UsageError if there is no study, or this version
    cannot read it."""
    folder = Folder(path)
    found = manifest.read(path, flag="")
    try:
        workload, limits = found.workload(), found.limits()
        objective = found.options["objective"]
        column = SCALES[objective][0]
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: manifest.json was written by another version: {error!s:.200}"
        ) from error
    best = Best.read(folder.best) if folder.best.exists() else None
    past = _past(folder)
    return Shown(
        folder=folder,
        manifest=found,
        limits=limits,
        workload=workload,
        trials=_with_more(_as_ran(_trials(folder.trials), workload, best), column),
        best=best,
        past=past,
        running=is_held(path) and (past is None or past.ended is None),
    )


def _past(folder: Folder) -> Past | None:
    try:
        return past_in(folder)
    except FileNotFoundError:
        return None
    except Exception as error:  # Optuna raises all kinds of errors for a damaged journal
        raise UsageError(
            f"{folder.path}: its journal is damaged, or was written by another version:"
            f" {type(error).__name__}: {error!s:.200}"
        ) from error


def _trials(path: Path) -> pd.DataFrame:
    """The whole rows of trials.csv; the last one may be incomplete."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{path}: {reason}") from error
    whole = text[: text.rfind("\n") + 1] or ",".join(COLUMNS)
    types = {name: "str" for name, kind in COLUMNS.items() if kind == WORD}
    numbers = [name for name in COLUMNS if name not in types]
    try:  # a script's axis may have values such as None or NA
        found = pd.read_csv(io.StringIO(whole), dtype=types, keep_default_na=False, na_values=[""])
        for name, axis in AXES.items():  # axes that are younger than the study were plain
            if name not in found and axis.plain is not None:
                found[name] = axis.plain
        if not set(COLUMNS) <= set(found.columns):
            raise UsageError(f"{path}: not a trials.csv of this version")
        found[numbers] = found[numbers].apply(pd.to_numeric)
    except ValueError as error:
        raise UsageError(f"{path}: not a trials.csv: {error!s:.200}") from error
    known = [verdict.value for verdict in Verdict]
    return found[found["verdict"].isin(known) & found["kind"].notna()].reset_index(drop=True)


def _as_ran(trials: pd.DataFrame, workload: Workload, best: Best | None) -> pd.DataFrame:
    """`trials` with real values where a script is told none: its best candidate's."""
    if workload.of_script and best is not None:
        for name in ("seq_len", "micro_batch"):
            if set(trials[name]) == {1}:
                trials[name] = getattr(best.config, name)
    return trials


def _with_more(trials: pd.DataFrame, column: str) -> pd.DataFrame:
    """`trials` with further columns for charts and tables."""
    found = trials.copy()
    found["tokens_per_joule"] = 1 / found["joules_per_token"]
    found["value"] = found[column]
    found["value_low"] = found["value"] * found["step_s_median"] / found["step_s_high"]
    found["value_high"] = found["value"] * found["step_s_median"] / found["step_s_low"]
    found["ended_s"] = found["started_s"] + found["probe_s"]
    found["tokens_per_micro_step"] = found["micro_batch"] * found["seq_len"]
    for name in ("peak_device", "predicted_peak", "predicted_low", "predicted_high"):
        found[f"{name}_gib"] = found[f"{name}_bytes"] / GIB
    values = {name: set(found[name].dropna()) for name in AXES}
    varying = [axis for axis in AXES.values() if len(values[axis.name]) > 1]
    builds = [axis for axis in varying if axis.name not in ("depth", "seq_len", "micro_batch")]
    found["build"] = _words(found, builds, "plain" if builds else "all")
    found["cell"] = _words(found, [AXES["depth"], AXES["seq_len"]], "all")
    shown = [axis for axis in AXES.values() if axis in varying or axis.name == "micro_batch"]
    found["candidate"] = _words(found, shown, "")
    return found


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of everything in `value`, at any depth: ("devices.0.name", "H100")."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(each, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


def _words(trials: pd.DataFrame, axes: list[Axis], otherwise: str) -> list[str]:
    """The values of `axes` of each trial that are not plain, with their names."""
    rows = trials[[axis.name for axis in axes]].itertuples()  # with an index: axes may be empty
    named = [
        [f"{axis.label} {value}" for axis, value in zip(axes, row[1:], strict=True)
         if axis.plain is None or value != axis.plain]
        for row in rows
    ]  # fmt: skip
    return [", ".join(words) or otherwise for words in named]
