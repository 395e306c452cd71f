"""Optuna's study, the record of record: each trial with its outcome, finals, and ends of runs.

However a study is interrupted, its storage has all told trials, and makes the other files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

import msgspec
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.errors import UsageError
from autotune.result.folder import manifest, processes
from autotune.result.folder.ask import Ask
from autotune.result.folder.databases import UnreachableError
from autotune.result.folder.folder import Folder
from autotune.result.folder.manifest import Changes
from autotune.result.folder.past import (
    FINAL,
    Lost,
    News,
    Past,
    StudyEnd,
    finals_in,
    of_part,
    past_of,
    sessions_in,
    told,
)
from autotune.result.folder.patience import Patience
from autotune.result.folder.processes import Processes
from autotune.result.folder.sampler import Adapter, Asked, candidate_of
from autotune.result.folder.storage import Storage, storage_of
from autotune.result.folder.table import Table
from autotune.result.loggers.runs import figures
from autotune.space.candidate import Candidate
from autotune.space.outcome import Objective, Outcome, Record, Verdict
from autotune.space.space import Limits, Space
from autotune.wire.budget import Clock, StopFlag

T = TypeVar("T")

_WEIGHED = (Verdict.OK, Verdict.PRUNED, Verdict.OVER_CEILING, Verdict.OVER_HOST_CEILING)
_BEYOND = 1.0
"""Constraint value of a candidate that ran out of memory: the excess is unknown."""


class Journal:
    """Owner of a study's trials: Optuna's study of them, and the table for people.

    If its storage is shared, other processes may work on the same study, and each trial has its
    `owner`. Each write is a transaction without other writers. It is repeated if the storage did
    not answer, so it first looks for the earlier try.
    """

    def __init__(
        self,
        optuna_study: optuna.Study,
        space: Space,
        objective: Objective,
        *,
        table: Table | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.optuna_study = optuna_study
        self._table = table
        self._storage = storage
        self._limits = space.limits
        self._objective = objective
        self._adapter: Adapter | None = None
        self._processes: Processes | None = None
        self._patience: Patience | None = None
        self._asks = 0
        self._sessions: list[dict[str, Any]] = []
        self._again = False
        """Whether a write is repeated because its answer was lost."""
        self._where = storage.where if storage is not None else ""
        self.part = storage.part if storage is not None else ""
        if storage is not None and storage.shared:
            self._processes = Processes(storage.read, self.part)
        self.cut_bytes = 0
        """Torn bytes at the end of Optuna's journal."""
        self.lost: list[Lost] = []
        """Lost nodes. Threads may add some; the next write stores them."""
        self._lost_told = 0
        self._write(self._begin)
        self.past = past_of(self.optuna_study, self.part)
        self.lost += self.past.lost
        self._lost_told = len(self.lost)
        self._known = {(str(r.purpose), r.number or 0) for r in self.past.records}
        self._last_final = max((n for what, n in self._known if what != "search"), default=-1)

    def _begin(self) -> None:
        """End the trials that ran in this folder before."""
        _name_value(self.optuna_study, self._objective)
        if self._processes is not None:
            self._processes.enter(self.optuna_study)
        seen = self.optuna_study.user_attrs
        running = self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            if processes.part_of(seen, _owner(trial.user_attrs)) == self.part:
                _end(self.optuna_study, trial, self._objective)

    @classmethod
    def in_memory(cls, space: Space, objective: Objective) -> Journal:
        """A journal of a study that leaves no files."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.create_study(direction="maximize"), space, objective)

    @classmethod
    def open(cls, folder: Folder, space: Space, storage: Storage, objective: Objective) -> Journal:
        """Begin the study of `folder` in `storage`, or go on with the one that is there.

        Trials that were running there are told as failed, or with their outcome. Raises UsageError
        if the study cannot be read back.
        """
        # Optuna warns of each query without an answer; here one note is enough.
        level = optuna.logging.ERROR if storage.shared else optuna.logging.WARNING
        optuna.logging.set_verbosity(level)
        try:
            if not storage.exists() and (folder.best.exists() or folder.trials.exists()):
                raise UsageError(
                    f"{storage.where}: is missing, so its measurements are lost; start a new study"
                )
            optuna_study, cut_bytes = storage.open()
            table = Table(folder.trials)
            journal = cls(optuna_study, space, objective, table=table, storage=storage)
        except (OSError, UsageError):
            raise
        except Exception as error:  # Optuna raises all kinds of errors for a damaged storage
            raise UsageError(
                f"{storage.where}: cannot be read back: {type(error).__name__}: {error!s:.200}"
            ) from error
        journal.cut_bytes = cut_bytes
        past = journal.past
        known = [*(record.candidate for record in past.records), *past.interrupted]
        strangers = set(known).difference(space.candidates)
        if strangers:
            first = min(strangers, key=known.index)
            raise UsageError(
                f"{storage.where}: {first.key} is not a candidate of this study's space"
            )
        return journal

    def use(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.optuna_study.sampler = adapter

    def attend(self, clock: Clock, stop: StopFlag, note: Callable[[str], None]) -> None:
        """Show other processes that this one lives, and wait in the budget for the storage."""
        self._patience = Patience(clock, stop, note)
        if self._processes is not None:
            self._processes.start(clock.elapsed_s)

    def close(self) -> None:
        """Let other processes have the candidates that run here."""
        if self._processes is not None:
            self._processes.stop()
            self._patience = None
            leave = self._processes.leave
            with suppress(OSError):  # else they find out by missing beats
                self._write(lambda: leave(self.optuna_study))

    @property
    def shared(self) -> bool:
        """Whether other processes may work on the study."""
        return self._processes is not None

    def ask(self, make: Callable[[News], Ask | None]) -> Asked | None:
        """A new trial of what `make` allows after the news; None if it returns None."""
        adapter = self._adapter
        assert adapter is not None, "`use` comes before this"
        self._asks += 1
        noted = self._noted({}, ask=f"#{self._asks}")  # no number to sort by

        def change() -> Asked | None:
            ask = make(self._news())
            if (there := self._there(noted)) is not None:
                trial = Trial(self.optuna_study, there._trial_id)
                return Asked(trial, candidate_of(there.params))
            return None if ask is None else adapter.ask(self.optuna_study, ask, noted)

        return self._write(change)

    def look(self, idle: Callable[[News], bool]) -> News:
        """The news of other processes. They learn whether this one is `idle`."""

        def change() -> News:
            news = self._news()
            if self._processes is not None:
                self._processes.rest(self.optuna_study, idle(news))
            return news

        return self._write(change)

    def begin(self, argv: Sequence[str], budget_s: float, accepted: Changes) -> None:
        """Note the begin of a run, with `budget_s` for the study in all."""
        session = self._noted({
            "argv": list(argv), "spent_s": self.past.spent_s, "budget_s": budget_s,
            "accepted_changes": accepted, "began": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        }, part=self.part)  # fmt: skip

        def change() -> None:
            before = sessions_in(self.optuna_study.user_attrs)
            if not self.shared or session["owner"] not in map(_owner, before):
                self.optuna_study.set_user_attr(f"session-{len(before):04d}", session)
            self._sessions = sessions_in(self.optuna_study.user_attrs)
            self.optuna_study.set_user_attr(of_part("ended", self.part), None)

        self._write(change)

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The arguments of every run; the known ones, if the storage does not answer."""
        with suppress(UnreachableError):
            self._sessions = self._write(lambda: sessions_in(self.optuna_study.user_attrs))
        return self._sessions

    def end(self, ended: StudyEnd, elapsed_s: float) -> None:
        told = {"code": ended.code.value, "message": ended.message, "elapsed_s": elapsed_s}
        self._write(lambda: self.optuna_study.set_user_attr(of_part("ended", self.part), told))

    def begin_probe(self, trial: Trial, elapsed_s: float, asked: Sequence[int]) -> None:
        """Note that `trial` is being probed, one of a round whose trials are `asked`."""
        self._set(trial, "began", {"elapsed_s": elapsed_s, "round": list(asked)})

    def excuse(self, trial: Trial) -> None:
        """Note that the user stopped the study in the probe of `trial`."""
        self._set(trial, "excused", True)

    def tell(self, trial: Trial, record: Record) -> None:
        """Record a search trial: its outcome, its constraints, its state. Intermediate values are
        step times. All attributes but the outcome are for tables that people read."""
        outcome = record.outcome
        state, value = _told_as(outcome, self._objective)
        steps_s = outcome.measurement.step_times if outcome.measurement is not None else {}
        excesses = constraints(outcome, self._limits)
        shown = {**_shown(outcome, self._limits), "outcome": asdict(outcome)}

        def change() -> int:
            there = self._finished(trial)
            if there is not None and "outcome" in there.user_attrs:
                return there.number
            if there is not None:  # others took this process for dead
                noted = self._noted({}, instead_of=there.number)
                if (other := self._there(noted)) is not None:
                    return other.number
                self.optuna_study.add_trial(create_trial(
                    state=state, value=value, params=there.params,
                    distributions=there.distributions, user_attrs=shown | noted,
                    intermediate_values=steps_s, constraints=excesses,
                ))  # fmt: skip
                return self.optuna_study.get_trials(deepcopy=False)[-1].number
            for name, excess in excesses.items():
                trial.set_constraint(name, excess)
            for number, step_s in steps_s.items():  # the trial refuses a second report
                trial.storage.set_trial_intermediate_value(trial._trial_id, number, step_s)
            for name, each in shown.items():
                trial.set_user_attr(name, each)
            self.optuna_study.tell(trial, value, state)
            return trial.number

        self._known.add(("search", self._write(change)))
        self.append([record])

    def claim_final(self, choose: Callable[[News], Candidate | None]) -> int | None:
        """The number of a new final of what `choose` returns, which others see; or None."""
        self._asks += 1
        noted = self._noted({}, ask=f"#{self._asks}")  # no number to sort by

        def change() -> int | None:
            chosen = choose(self._news())
            if chosen is None:
                return None
            if not self.shared:
                return self._last_final + 1
            finals = dict(finals_in(self.optuna_study.user_attrs))
            number = max([self._last_final, *finals]) + 1
            # A claim whose answer got lost is replaced.
            mine = (n for n, each in finals.items() if noted.items() <= each.items())
            number = next(mine, number)
            final = noted | {"candidate": asdict(chosen)}
            self.optuna_study.set_user_attr(f"{FINAL}{number:04d}", final)
            return number

        number = self._write(change)
        self._last_final = self._last_final if number is None else number
        return number

    def add_final(self, record: Record) -> None:
        """Record a final: a measurement of a candidate that already has its trial. Launches for
        the phases of a script share their numbers."""
        final = self._noted({
            "candidate": asdict(record.candidate), "outcome": asdict(record.outcome),
            "purpose": record.purpose,
        })  # fmt: skip
        key = f"{FINAL}{record.number:04d}"
        self._write(lambda: self.optuna_study.set_user_attr(key, final))
        self._known.add((record.purpose, record.number or 0))
        self.append([record])

    def rewrite(self, records: Sequence[Record]) -> None:
        """Make trials.csv anew, of `records`."""
        if self._table is not None:
            self._table.rewrite(records)

    def told(self) -> list[Record]:
        """All records, in the same order for every process."""
        return self._write(lambda: past_of(self.optuna_study, self.part)).records

    def append(self, records: Sequence[Record]) -> None:
        """Add `records` to trials.csv, also of other processes and unproposed candidates."""
        if self._table is not None and records:
            self._table.append(records)

    def _write(self, change: Callable[[], T]) -> T:
        """Make a change in one transaction, again if no answer comes. Raises OSError."""
        for tries in count():
            self._again = tries > 0
            lost = list(self.lost)
            try:
                with self._together():
                    if self._again:
                        self._forget()
                    if len(lost) > self._lost_told:
                        said = [asdict(each) for each in lost]
                        self.optuna_study.set_user_attr(of_part("lost", self.part), said)
                    changed = change()
            except UnreachableError as error:
                patience = self._patience
                if patience is None or patience.ended:
                    raise
                if tries == 1:  # by then, all connections are new
                    patience.note(f"{self._where}: {error.strerror}; waiting for it")
                if not patience.pause(tries):
                    raise
            else:
                self._lost_told = len(lost)
                if tries > 1 and self._patience is not None:
                    self._patience.note(f"{self._where}: answers again")
                return changed
        raise AssertionError("counts for ever")

    def _together(self) -> AbstractContextManager[None]:
        return nullcontext() if self._storage is None else self._storage.together()

    def _forget(self) -> None:
        """Make Optuna forget the writes that failed."""
        assert self._storage is not None
        self.optuna_study = self._storage.again()
        if self._adapter is not None:
            self.optuna_study.sampler = self._adapter

    def _news(self) -> News:
        """The news of other processes. Trials of dead processes are ended."""
        if self._processes is None:
            return News()
        seen = self.optuna_study.user_attrs
        trials = self.optuna_study.get_trials(deepcopy=False)
        running = []
        for trial in trials:
            owner = _owner(trial.user_attrs)
            if trial.state != TrialState.RUNNING or owner == self._processes.own:
                continue
            if self._processes.lives(seen, owner):
                running.append(candidate_of(trial.params))
            else:
                _end(self.optuna_study, trial, self._objective)
        records = tuple(told(trials, seen, self.part, self._known))
        self._known |= {(str(r.purpose), r.number or 0) for r in records}
        return News(
            records=records,
            running=tuple(running),
            finals=tuple(
                msgspec.convert(final["candidate"], Candidate)
                for _, final in finals_in(seen)
                if "outcome" not in final
                and _owner(final) != self._processes.own
                and self._processes.lives(seen, _owner(final))
            ),
            at_work=self._processes.at_work(seen),
        )

    def _noted(self, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The attributes with their owner and `more`, if other processes may exist."""
        if self._processes is None:
            return attributes
        return {**attributes, "owner": self._processes.own, **more}

    def _there(self, noted: Mapping[str, Any]) -> FrozenTrial | None:
        """This process's trial that was written although the answer got lost."""
        trials = self.optuna_study.get_trials(deepcopy=False) if self._again else []
        return next((t for t in trials if noted.items() <= t.user_attrs.items()), None)

    def _finished(self, trial: Trial) -> FrozenTrial | None:
        """`trial` after its end; None while it runs. In a journal nobody else can end it."""
        if not self.shared:
            return None
        there = self.optuna_study._storage.get_trial(trial._trial_id)
        return there if there.state.is_finished() else None

    def _set(self, trial: Trial, name: str, value: Any) -> None:
        def change() -> None:
            if self._finished(trial) is None:
                trial.set_user_attr(name, value)

        self._write(change)


def _owner(attributes: Mapping[str, Any]) -> str:
    """The process that owns a trial or a final; empty if none is noted."""
    return str(attributes.get("owner", ""))


def _name_value(optuna_study: optuna.Study, objective: Objective) -> None:
    if not optuna_study.get_trials(deepcopy=False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            name = "model FLOP/s" if objective == "flops" else objective
            optuna_study.set_metric_names([name])


def _end(optuna_study: optuna.Study, trial: FrozenTrial, objective: Objective) -> None:
    """End `trial`, which nobody probes any more."""
    state, value = TrialState.FAIL, None
    if "outcome" in trial.user_attrs:  # it ended, and only its state was not written
        outcome = msgspec.convert(trial.user_attrs["outcome"], Outcome)
        state, value = _told_as(outcome, objective)
    optuna_study.tell(trial.number, value, state)


def _told_as(outcome: Outcome, objective: Objective) -> tuple[TrialState, float | None]:
    """State and value of a trial in Optuna: a COMPLETE one has the measured objective."""
    verdict, found = outcome.verdict, outcome.measurement
    if verdict == Verdict.OK:
        return TrialState.COMPLETE, None if found is None else found.value(objective)
    unfit = verdict in _WEIGHED or verdict == Verdict.OOM
    return TrialState.PRUNED if unfit else TrialState.FAIL, None


def records_in(folder: Folder) -> list[Record]:
    """The records of the study in `folder`, in the order of time; see `past_in`."""
    return past_in(folder).records


def past_in(folder: Folder) -> Past:
    """The past of the study in `folder`. Nothing is written there. Raises UsageError without a
    study, OSError without its trials, and any error that Optuna raises for a damaged storage."""
    found = manifest.read(folder.path)
    return past_of(storage_of(folder, found).read(), found.part)


def _shown(outcome: Outcome, limits: Limits) -> dict[str, str | float]:
    """Attributes of a trial for people, beside its candidate."""
    why = {"reason": outcome.reason} if outcome.reason else {}
    return {"verdict": outcome.verdict.value, **figures(outcome, limits), **why}


def constraints(outcome: Outcome, limits: Limits) -> dict[str, float]:
    """Optuna's constraint values: at most 0 if the memory fits, else the share above the limit."""
    peaks = outcome.measurement.peaks if outcome.measurement is not None else None
    device = host = 0.0
    if peaks is None or outcome.verdict not in _WEIGHED:
        return {"device_memory": _BEYOND, "host_memory": host}
    if outcome.verdict != Verdict.OVER_HOST_CEILING:
        device = peaks.device_bytes / limits.limit_bytes - 1
    if outcome.verdict == Verdict.OVER_CEILING:  # the peak of an unstable one may be below it
        device = max(device, 1e-3)
    else:
        host = peaks.host_bytes / limits.host_limit_bytes - 1
    return {"device_memory": device, "host_memory": host}
