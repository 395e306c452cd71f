"""The study folder: every path in it, the Optuna storage, and the tables written as it goes.

manifest.json   what was asked, on what: options, space, fingerprint
optuna.log      Optuna's journal, the record of record: each trial with its outcome
trials.csv      the same trials for people, one row as each ends
logs/           stdout and stderr of every rank
best.json       the result
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from autotune.export import trials
from autotune.outcome import Outcome, Record, Verdict
from autotune.sampler import SpaceSampler
from autotune.space import Candidate, Limits

# The state each verdict has in Optuna: what was measured, what did not fit, what broke.
_STATES = {
    Verdict.OK: TrialState.COMPLETE,
    Verdict.OOM: TrialState.PRUNED,
    Verdict.OVER_CEILING: TrialState.PRUNED,
    Verdict.OVER_HOST_CEILING: TrialState.PRUNED,
    Verdict.PRUNED: TrialState.PRUNED,
    Verdict.UNSUPPORTED: TrialState.FAIL,
    Verdict.HUNG: TrialState.FAIL,
    Verdict.CRASHED: TrialState.FAIL,
    Verdict.SKIPPED: TrialState.FAIL,
}
_BEYOND = 1.0
"""Constraint value of a candidate that ran out of memory: how far over is not known."""


class Journal:
    """Owner of one study folder."""

    def __init__(self, folder: Path, sampler: SpaceSampler, manifest: dict[str, Any]) -> None:
        """Make `folder` and open a new Optuna study in it. The folder must be new or empty."""
        self.folder = folder
        self.logs = folder / "logs"
        self.best = folder / "best.json"
        self._trials_csv = folder / "trials.csv"
        self.logs.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(folder / "optuna.log")))
        self.study = optuna.create_study(
            storage=storage, sampler=sampler, study_name="autotune", direction="maximize"
        )

    def tell(self, trial: Trial, record: Record, value: float | None, limits: Limits) -> None:
        """Record a search trial: its outcome, its constraints, its state.

        `value` is the measured objective; it is Optuna's value of a COMPLETE trial and an
        intermediate value of one that was stopped early.
        """
        outcome = record.outcome
        for name, excess in constraints(outcome, limits).items():
            trial.set_constraint(name, excess)
        if outcome.measurement is not None and value is not None:
            trial.report(value, outcome.measurement.step.steps)
        trial.set_user_attr("outcome", _jsonable(asdict(outcome)))
        state = _STATES[outcome.verdict]
        self.study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        self._append([record])

    def add_final(self, record: Record) -> None:
        """Record a final: a measurement of a candidate that already has its trial."""
        outcome = _jsonable(asdict(record.outcome))
        key = f"final-{record.number:04d}-{record.candidate.key}"
        self.study.set_user_attr(key, outcome)
        self._append([record])

    def add_skipped(self, records: Sequence[Record]) -> None:
        """Record candidates that are not even proposed; they are no trials of Optuna's."""
        self._append(records)

    def _append(self, records: Sequence[Record]) -> None:
        table = pd.DataFrame([trials.row(r) for r in records], columns=list(trials.COLUMNS))
        new = not self._trials_csv.exists()
        table.to_csv(self._trials_csv, mode="a", header=new, index=False, encoding="utf-8")


def constraints(outcome: Outcome, limits: Limits) -> dict[str, float]:
    """Optuna's constraint values: at most 0 where the memory fits, else the share it is over."""
    peaks = outcome.measurement.peaks if outcome.measurement is not None else None
    if outcome.verdict.fits and peaks is not None:
        return {
            "device_memory": peaks.device_bytes / limits.limit_bytes - 1,
            "host_memory": peaks.host_bytes / limits.host_limit_bytes - 1,
        }
    if outcome.verdict == Verdict.OVER_CEILING and peaks is not None:
        # An unstable candidate is over the ceiling though its peak is not.
        over = max(peaks.device_bytes / limits.limit_bytes - 1, 1e-3)
        return {"device_memory": over, "host_memory": 0.0}
    if outcome.verdict == Verdict.OVER_HOST_CEILING and peaks is not None:
        return {
            "device_memory": 0.0,
            "host_memory": peaks.host_bytes / limits.host_limit_bytes - 1,
        }
    return {"device_memory": _BEYOND, "host_memory": 0.0}


def candidate_of(trial: Trial) -> Candidate:
    """The candidate that a trial's parameters name."""
    return Candidate(**trial.params)


def _jsonable(value: Any) -> Any:
    """`value` with tuples as lists and enums as text, as Optuna's journal will read it back."""
    return json.loads(json.dumps(value))
