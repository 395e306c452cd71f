"""The past of a study by Optuna's records, of this process and of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec
import optuna
from optuna.trial import FrozenTrial, TrialState

from autotune.result.folder import processes
from autotune.result.folder.sampler import candidate_of, named
from autotune.space.candidate import Candidate
from autotune.space.outcome import Outcome, Record

FINAL = "final-"
"""Prefix of the attributes of finals. A final without an outcome is not measured yet."""
Known = Set[tuple[str, int]]
"""Purposes and numbers of records."""


class Ending(StrEnum):
    FOUND = "found"
    INTERNAL = "internal"
    """Its folder could not be written any more."""
    NOTHING_FITS = "nothing_fits"
    STOPPED = "stopped"
    NO_MEASUREMENT = "no_measurement"

    @property
    def is_final(self) -> bool:
        """Whether the study did all that its budget allowed; others can go on."""
        return self in (Ending.FOUND, Ending.NOTHING_FITS)


@dataclass(frozen=True)
class StudyEnd:
    code: Ending
    message: str = ""
    """One line for the user; empty after a result."""


@dataclass(frozen=True)
class Lost:
    elapsed_s: float
    """On the budget's clock."""
    why: str
    """The reason, which names the node."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """The results of the earlier runs of a study."""

    trials: int
    """Number of trials that were asked for."""
    records: list[Record]
    """Trials and finals, in the order in which they ended."""
    interrupted: list[Candidate]
    """Candidates with a trial but without an outcome, in the order of their trials."""
    round_begun: bool
    """Whether a trial of their round was probed. If not, the round may have been incomplete."""
    suspects: set[Candidate]
    """Candidates in whose probes the study died more than once."""
    spent_s: float
    """The used budget, as far as known."""
    budget_s: float | None
    """The whole budget of the last run; None before the first."""
    ended: StudyEnd | None
    """The end of the last run; None if it was cut off."""
    began: str
    """Begin of the first run; empty if unknown."""
    lost: list[Lost]
    """Lost nodes, in all runs in this folder."""


@dataclass(frozen=True, kw_only=True)
class News:
    """The work of other processes since the last look."""

    records: tuple[Record, ...] = ()
    running: tuple[Candidate, ...] = ()
    """Candidates that they probe now, or soon."""
    finals: tuple[Candidate, ...] = ()
    """Candidates of their finals that run now."""
    at_work: bool = False
    """Whether one of them may still tell a result."""


def past_of(optuna_study: optuna.Study, part: str = "") -> Past:
    """Read a study back, for the folder of its `part`, without running trials. Raises all kinds of
    errors if its storage is damaged."""
    seen = optuna_study.user_attrs
    trials = optuna_study.get_trials(deepcopy=False)
    records = list(told(trials, seen, part))
    known = {record.candidate for record in records if record.purpose == "search"}
    untold = [
        trial
        for trial in trials
        if "outcome" not in trial.user_attrs
        and named(trial.params)
        and trial.state != TrialState.RUNNING
    ]
    lost = [trial for trial in untold if candidate_of(trial.params) not in known]
    begun = [trial.user_attrs["began"] for trial in trials if "began" in trial.user_attrs]
    deaths = Counter(
        candidate_of(trial.params)
        for trial in untold
        if "began" in trial.user_attrs and "excused" not in trial.user_attrs
    )
    sessions, ended = sessions_in(seen), seen.get(of_part("ended", part))
    mine = [each for each in sessions if each.get("part", "") in ("", part)]
    marks_s = [
        processes.elapsed_s(seen),
        *map(_ended_s, records),
        *(float(each["elapsed_s"]) for each in [*begun, *([ended] if ended else [])]),
        *(float(session["spent_s"]) for session in sessions),
    ]
    return Past(
        trials=len(trials),
        records=sorted(records, key=lambda r: (_ended_s(r), r.purpose, r.number)),
        interrupted=list(dict.fromkeys(candidate_of(trial.params) for trial in lost)),
        round_begun=any(trial.number in each["round"] for trial in lost for each in begun),
        suspects={candidate for candidate, times in deaths.items() if times > 1},
        spent_s=max(marks_s),
        budget_s=float(mine[-1]["budget_s"]) if mine else None,
        ended=StudyEnd(Ending(ended["code"]), ended["message"]) if ended else None,
        began=str(sessions[0].get("began", "")) if sessions else "",
        lost=msgspec.convert(seen.get(of_part("lost", part), []), list[Lost]),
    )


def told(
    trials: list[FrozenTrial], seen: Mapping[str, Any], part: str, known: Known = frozenset()
) -> Iterator[Record]:
    """Records that are not `known`, of `trials` and of finals in the study's attributes `seen`.
    The name of a log has its process in front, unless that is of this `part`."""
    for trial in trials:
        if "outcome" in trial.user_attrs and ("search", trial.number) not in known:
            candidate = candidate_of(trial.params)
            outcome = _outcome(trial.user_attrs, seen, part)
            yield Record(trial.number, "search", candidate, outcome)
    for number, final in finals_in(seen):
        purpose = final.get("purpose", "final")
        if "outcome" in final and (purpose, number) not in known:
            candidate = msgspec.convert(final["candidate"], Candidate)
            yield Record(number, purpose, candidate, _outcome(final, seen, part))


def finals_in(seen: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and values of the finals among the attributes `seen`."""
    for key, final in seen.items():
        if key.startswith(FINAL):
            yield int(key.removeprefix(FINAL)), final


def of_part(name: str, part: str) -> str:
    """The name of an attribute of a folder's part: "ended" or "lost", for the last run."""
    return f"{name}-{part}" if part else name


def sessions_in(seen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sessions: the start of every run of the study."""
    return [seen[key] for key in sorted(seen) if key.startswith("session-")]


def _ended_s(record: Record) -> float:
    return record.outcome.started_s + record.outcome.probe_s


def _outcome(of: Mapping[str, Any], seen: Mapping[str, Any], part: str) -> Outcome:
    outcome = msgspec.convert(of["outcome"], Outcome)
    owner = of.get("owner", "")
    if outcome.log and processes.part_of(seen, owner) != part:
        return replace(outcome, log=f"{owner or 'the first'}/{outcome.log}")
    return outcome
