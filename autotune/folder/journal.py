"""Optuna's study, the record of record: each trial with its outcome, finals, and how runs ended.

Whatever interrupts a study, its storage holds what was told. What else is written in the folder
can be made from it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.errors import UsageError
from autotune.folder import manifest
from autotune.folder.ending import Ended, Ending
from autotune.folder.folder import Folder
from autotune.folder.manifest import Changes
from autotune.folder.storage import Storage, storage_of
from autotune.folder.table import Table
from autotune.loggers.runs import figures
from autotune.outcome import Objective, Outcome, Record, Verdict, outcome_from
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
_BEYOND = 1.0
"""Constraint value of a candidate that ran out of memory: how far over is not known."""


class Journal:
    """Owner of a study's trials: Optuna's study of them, and the table for people."""

    def __init__(
        self,
        optuna_study: optuna.Study,
        table: Table | None,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.optuna_study = optuna_study
        self._table = table
        self._together = together
        self._adapter: Adapter | None = None
        self.cut_bytes = 0
        """What was torn at the end of Optuna's journal."""
        self.past = _past(optuna_study)

    @classmethod
    def in_memory(cls) -> Journal:
        """Of a study that leaves nothing behind."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.create_study(direction="maximize"), None)

    @classmethod
    def open(cls, folder: Folder, space: Space, storage: Storage, objective: Objective) -> Journal:
        """Begin the study of `folder` in `storage`, or go on with the one that is there.

        Trials that were running are told as failed, or with the outcome that they had reached.

        Raises:
            UsageError: what is there cannot be read back.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            if not storage.exists() and (folder.best.exists() or folder.trials.exists()):
                raise UsageError(
                    f"{storage.where}: is missing, and with it what was measured; start anew"
                )
            optuna_study, cut_bytes = storage.open()
            _name_value(optuna_study, objective)
            _end_running(optuna_study, objective)
            journal = cls(optuna_study, Table(folder.trials), storage.together)
        except (OSError, UsageError):
            raise
        except Exception as error:  # whatever it is that a damaged storage makes Optuna raise
            raise UsageError(
                f"{storage.where}: cannot be read back: {type(error).__name__}: {error!s:.200}"
            ) from error
        journal.cut_bytes = cut_bytes
        past = journal.past
        known = [*(record.candidate for record in past.records), *past.interrupted]
        strangers = set(known).difference(space.candidates)
        if strangers:
            first = min(strangers, key=known.index)
            raise UsageError(f"{storage.where}: {first.key} is no candidate of this study's space")
        return journal

    def use(self, adapter: Adapter) -> None:
        """Have its sampler asked from now on."""
        self._adapter = adapter
        self.optuna_study.sampler = adapter

    def ask(self, ask: Ask) -> Asked:
        """A new trial, of a candidate that `ask` allows."""
        assert self._adapter is not None, "`use` comes before this"
        with self._together():
            return self._adapter.ask(self.optuna_study, ask)

    def begin(self, argv: Sequence[str], budget_s: float, accepted: Changes) -> None:
        """Note that a run begins, of which the study has `budget_s` in all."""
        session = {
            "argv": list(argv), "spent_s": self.past.spent_s, "budget_s": budget_s,
            "accepted_changes": accepted,
        }  # fmt: skip
        with self._together():
            self.optuna_study.set_user_attr(f"session-{len(self.sessions):04d}", session)
            self.optuna_study.set_user_attr("ended", None)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What every run of this study was started with, the first one included."""
        return _sessions(self.optuna_study)

    def end(self, ended: Ended, elapsed_s: float) -> None:
        """Note how it ended."""
        told = {"code": ended.code.value, "message": ended.message, "elapsed_s": elapsed_s}
        with self._together():
            self.optuna_study.set_user_attr("ended", told)

    def begin_probe(self, trial: Trial, elapsed_s: float, asked: Sequence[int]) -> None:
        """Note that `trial` is being probed, one of a round whose trials are `asked`."""
        with self._together():
            trial.set_user_attr("began", {"elapsed_s": elapsed_s, "round": list(asked)})

    def excuse(self, trial: Trial) -> None:
        """Note that it was the user who stopped the study in the probe of `trial`."""
        with self._together():
            trial.set_user_attr("excused", True)

    def tell(self, trial: Trial, record: Record, value: float | None, limits: Limits) -> None:
        """Record a search trial: its outcome, its constraints, its state.

        `value` is the measured objective, Optuna's value of a COMPLETE trial. Intermediate values
        are step times; other attributes than the outcome are for people, who see them in a table.
        """
        outcome = record.outcome
        state = _STATES[outcome.verdict]
        with self._together():
            for name, excess in constraints(outcome, limits).items():
                trial.set_constraint(name, excess)
            if outcome.measurement is not None:
                for number, step_s in outcome.measurement.step_times.items():
                    trial.report(step_s, number)
            for name, shown in _shown(outcome, limits).items():
                trial.set_user_attr(name, shown)
            trial.set_user_attr("outcome", to_json(outcome))
            self.optuna_study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        self._append([record])

    def add_final(self, record: Record) -> None:
        """Record a final: a measurement of a candidate that already has its trial."""
        final = {"candidate": to_json(record.candidate), "outcome": to_json(record.outcome)}
        with self._together():
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


def _name_value(optuna_study: optuna.Study, objective: Objective) -> None:
    """Have charts of Optuna's say what its value is. Older studies go without."""
    if not optuna_study.get_trials(deepcopy=False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            name = "model FLOP/s" if objective == "flops" else objective
            optuna_study.set_metric_names([name])


def _end_running(optuna_study: optuna.Study, objective: Objective) -> None:
    for trial in optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        state, value = TrialState.FAIL, None
        if "outcome" in trial.user_attrs:  # it had ended, and all but its state was written
            outcome = _outcome(trial)
            state = _STATES[outcome.verdict]
            if state == TrialState.COMPLETE and outcome.measurement is not None:
                value = outcome.measurement.value(objective)
        optuna_study.tell(trial.number, value, state)


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


def records_in(folder: Folder) -> list[Record]:
    """What the study in `folder` has told so far, in the order of time; see `past_in`."""
    return past_in(folder).records


def past_in(folder: Folder) -> Past:
    """What the study in `folder` has come to so far. Nothing is written there.

    Raises UsageError where there is no study, OSError where its trials are gone, and whatever a
    damaged storage makes Optuna raise.
    """
    return _past(storage_of(folder, manifest.read(folder.path)).read())


def _ended_s(record: Record) -> float:
    return record.outcome.started_s + record.outcome.probe_s


def _outcome(trial: FrozenTrial) -> Outcome:
    return outcome_from(trial.user_attrs["outcome"])


def _shown(outcome: Outcome, limits: Limits) -> dict[str, str | float]:
    """What a table of trials shows of `outcome` beside its candidate."""
    why = {"reason": outcome.reason} if outcome.reason else {}
    return {"verdict": outcome.verdict.value, **figures(outcome, limits), **why}


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
