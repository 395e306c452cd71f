"""Optuna's journal, the record of record: each trial with its outcome, finals, and how runs ended.

Whatever interrupts a study, it holds what was told: only its last line can be torn. What else is
written in the folder can be made from it.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.errors import UsageError
from autotune.folder.ending import Ended, Ending
from autotune.folder.folder import Folder
from autotune.folder.manifest import Changes
from autotune.folder.table import Table
from autotune.outcome import Outcome, Record, Verdict, outcome_from
from autotune.samplers.ask import Ask
from autotune.samplers.sampler import Adapter, Asked, candidate_of, named
from autotune.space.candidate import Candidate
from autotune.space.space import Limits, Space
from autotune.wire.codec import parse, to_json

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
_NAME = "autotune"
_BEYOND = 1.0
"""Constraint value of a candidate that ran out of memory: how far over is not known."""


class _NoLock(JournalFileOpenLock):
    """The whole folder is held already (files.py), and a lock file could outlive its process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Journal:
    """Owner of a study's trials: Optuna's study of them, and the table for people."""

    def __init__(self, optuna_study: optuna.Study, table: Table | None) -> None:
        self.optuna_study = optuna_study
        self._table = table
        self._adapter: Adapter | None = None
        self.cut_bytes = 0
        """What was torn at the end of Optuna's journal."""
        self._end_running()
        self.past = _past(optuna_study)

    @classmethod
    def in_memory(cls) -> Journal:
        """Of a study that leaves nothing behind."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.create_study(direction="maximize"), None)

    @classmethod
    def open(cls, folder: Folder, space: Space) -> Journal:
        """Begin the study in `folder`, or go on with the one that is there.

        Trials that were running are told as failed, or with the outcome that they had reached.

        Raises:
            UsageError: what is there cannot be read back.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = folder.optuna_log
        if not path.exists() and (folder.best.exists() or folder.trials.exists()):
            raise UsageError(f"{path}: is missing, and with it what was measured; start anew")
        cut_bytes = repair(path)
        try:
            journal = cls(_load(path), Table(folder.trials))
        except OSError:
            raise
        except Exception as error:  # whatever it is that a damaged journal makes Optuna raise
            raise UsageError(
                f"{path}: cannot be read back: {type(error).__name__}: {error!s:.200}"
            ) from error
        journal.cut_bytes = cut_bytes
        past = journal.past
        known = [*(record.candidate for record in past.records), *past.interrupted]
        strangers = set(known).difference(space.candidates)
        if strangers:
            first = min(strangers, key=known.index)
            raise UsageError(f"{path}: {first.key} is no candidate of this study's space")
        return journal

    def use(self, adapter: Adapter) -> None:
        """Have its sampler asked from now on."""
        self._adapter = adapter
        self.optuna_study.sampler = adapter

    def ask(self, ask: Ask) -> Asked:
        """A new trial, of a candidate that `ask` allows."""
        assert self._adapter is not None, "`use` comes before this"
        return self._adapter.ask(self.optuna_study, ask)

    def begin(self, argv: Sequence[str], budget_s: float, accepted: Changes) -> None:
        """Note that a run begins, of which the study has `budget_s` in all."""
        session = {
            "argv": list(argv), "spent_s": self.past.spent_s, "budget_s": budget_s,
            "accepted_changes": accepted,
        }  # fmt: skip
        self.optuna_study.set_user_attr(f"session-{len(self.sessions):04d}", session)
        self.optuna_study.set_user_attr("ended", None)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What every run of this study was started with, the first one included."""
        return _sessions(self.optuna_study)

    def end(self, ended: Ended, elapsed_s: float) -> None:
        """Note how it ended."""
        told = {"code": ended.code.value, "message": ended.message, "elapsed_s": elapsed_s}
        self.optuna_study.set_user_attr("ended", told)

    def begin_probe(self, trial: Trial, elapsed_s: float, asked: Sequence[int]) -> None:
        """Note that `trial` is being probed, one of a round whose trials are `asked`."""
        trial.set_user_attr("began", {"elapsed_s": elapsed_s, "round": list(asked)})

    def excuse(self, trial: Trial) -> None:
        """Note that it was the user who stopped the study in the probe of `trial`."""
        trial.set_user_attr("excused", True)

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
        trial.set_user_attr("outcome", to_json(outcome))
        state = _STATES[outcome.verdict]
        self.optuna_study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        self._append([record])

    def add_final(self, record: Record) -> None:
        """Record a final: a measurement of a candidate that already has its trial."""
        final = {"candidate": to_json(record.candidate), "outcome": to_json(record.outcome)}
        self.optuna_study.set_user_attr(f"final-{record.number:04d}", final)
        self._append([record])

    def add_skipped(self, records: Sequence[Record]) -> None:
        """Record candidates that are not even proposed; they are no trials of Optuna's."""
        self._append(records)

    def rewrite(self, records: Sequence[Record]) -> None:
        """Make trials.csv anew, of `records`."""
        if self._table is not None:
            self._table.rewrite(records)

    def _append(self, records: Sequence[Record]) -> None:
        if self._table is not None:
            self._table.append(records)

    def _end_running(self) -> None:
        for trial in self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            state, value = TrialState.FAIL, None
            if "outcome" in trial.user_attrs:  # it had ended, and all but its state was written
                state = _STATES[_outcome(trial).verdict]
            if state == TrialState.COMPLETE:
                value = trial.intermediate_values[trial.last_step or 0]
            self.optuna_study.tell(trial.number, value, state)


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the earlier runs of a study came to."""

    trials: int
    """That were asked for."""
    records: list[Record]
    """Trials and finals, in the order in which they ended."""
    interrupted: list[Candidate]
    """What was asked for and never told, in that order."""
    round_begun: bool
    """Whether a trial of their round was probed; else there may have been more to ask for."""
    suspects: set[Candidate]
    """In whose probes the study died more than once."""
    spent_s: float
    """Budget that was used, as far as is known."""
    budget_s: float | None
    """In all, as the last run had it; None before the first."""
    ended: Ended | None
    """How the last run ended; None where it did not get to say so."""


def _past(optuna_study: optuna.Study) -> Past:
    """Read a study back. Raises all kinds of errors where its journal is damaged."""
    trials = optuna_study.get_trials(deepcopy=False)
    told = [trial for trial in trials if "outcome" in trial.user_attrs]
    known = {candidate_of(trial.params) for trial in told}
    untold = [
        trial for trial in trials if "outcome" not in trial.user_attrs and named(trial.params)
    ]
    lost = [trial for trial in untold if candidate_of(trial.params) not in known]
    begun = [trial.user_attrs["began"] for trial in trials if "began" in trial.user_attrs]
    deaths = Counter(
        candidate_of(trial.params)
        for trial in untold
        if "began" in trial.user_attrs and "excused" not in trial.user_attrs
    )
    records = [
        *(Record(t.number, "search", candidate_of(t.params), _outcome(t)) for t in told),
        *_finals(optuna_study),
    ]
    sessions, ended = _sessions(optuna_study), optuna_study.user_attrs.get("ended")
    marks_s = [
        0.0,
        *map(_ended_s, records),
        *(float(each["elapsed_s"]) for each in [*begun, *([ended] if ended else [])]),
        *(float(session["spent_s"]) for session in sessions),
    ]
    return Past(
        trials=len(trials),
        records=sorted(records, key=_ended_s),
        interrupted=list(dict.fromkeys(candidate_of(trial.params) for trial in lost)),
        round_begun=any(trial.number in each["round"] for trial in lost for each in begun),
        suspects={candidate for candidate, times in deaths.items() if times > 1},
        spent_s=max(marks_s),
        budget_s=float(sessions[-1]["budget_s"]) if sessions else None,
        ended=Ended(Ending(ended["code"]), ended["message"]) if ended else None,
    )


def _sessions(optuna_study: optuna.Study) -> list[dict[str, Any]]:
    attributes = optuna_study.user_attrs
    return [attributes[key] for key in sorted(attributes) if key.startswith("session-")]


def _finals(optuna_study: optuna.Study) -> Iterator[Record]:
    for key, final in optuna_study.user_attrs.items():
        if key.startswith("final-"):
            candidate = parse(Candidate, final["candidate"], strict=False)
            number = int(key.removeprefix("final-"))
            yield Record(number, "final", candidate, outcome_from(final["outcome"]))


def _load(path: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(path), _NoLock(str(path))))
    if _NAME in optuna.get_all_study_names(storage):
        return optuna.load_study(storage=storage, study_name=_NAME)
    return optuna.create_study(storage=storage, study_name=_NAME, direction="maximize")


def records_in(folder: Folder) -> list[Record]:
    """What the study in `folder` has told so far, in the order of time; see `past_in`."""
    return past_in(folder).records


def past_in(folder: Folder) -> Past:
    """What the study in `folder` has come to so far. Nothing is written there.

    Raises whatever a damaged journal makes Optuna raise; OSError where there is none.
    """
    path = folder.optuna_log
    path.stat()  # or Optuna would create it
    storage = JournalStorage(JournalFileBackend(str(path), _NoLock(str(path))))
    return _past(optuna.load_study(storage=storage, study_name=_NAME))


def repair(path: Path) -> int:
    """Cut a torn last line off Optuna's journal; returns the bytes that were cut.

    A file that is not there has nothing torn.

    Raises:
        UsageError: a line before the last one is damaged; nothing was changed.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not (line.endswith(b"\n") and _is_entry(line)):
            if data[whole + len(line) :].strip(b"\0\r\n\t "):
                raise UsageError(
                    f"{path}: line {number} is damaged, and others follow it; cut the file before"
                    " that line to go on with what is above it"
                )
            break
        whole += len(line)
    if whole < len(data):
        os.truncate(path, whole)
    return len(data) - whole


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _ended_s(record: Record) -> float:
    return record.outcome.started_s + record.outcome.probe_s


def _outcome(trial: FrozenTrial) -> Outcome:
    return outcome_from(trial.user_attrs["outcome"])


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
