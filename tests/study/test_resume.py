"""Studies that go on: nothing told is lost or tried again, and the end is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from optuna.trial import TrialState

from autotune.measure.runner import Job, Result
from autotune.result.folder.past import Ending, StudyEnd
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.wire.budget import VirtualTime
from tests.support import studies
from tests.support.records import space, with_offload
from tests.support.scripted import ok
from tests.support.studies import Answer, Killed, killing, open_journal

SPACE = space(micro_batch=(1, 8))


def saturating(job: Job) -> Result:
    """The largest do not fit."""
    return studies.saturating(job, mib_a_token=6)


def Run(  # noqa: N802 - as if it was the class
    folder: Path, answer: Answer = saturating, among: Space = SPACE, **options: Any
) -> studies.Run:
    return studies.Run(folder, answer, among, **{"sampler": "grid"} | options)


def killed(folder: Path, after: int, **options: Any) -> None:
    with pytest.raises(Killed):
        Run(folder, killing(after, saturating), **options)


@pytest.mark.parametrize("name", ["frontier", "random", "tpe"])
def test_wherever_it_is_interrupted_the_same_is_tried(tmp_path: Path, name: str) -> None:
    whole = Run(tmp_path / "whole", sampler=name)
    probes = len(whole.runner.jobs)
    for after in range(0, probes, 6):
        folder = tmp_path / f"{after}"
        killed(folder, after, sampler=name)
        resumed = Run(folder, sampler=name)
        if name == "frontier":
            assert len(resumed.runner.jobs) == probes - after
            assert resumed.ended == whole.ended, after
        else:
            searched = [c for purpose, c, _ in resumed.ended if purpose == "search"]
            assert searched == sorted(SPACE.candidates), after


def test_trials_csv_is_the_same_after_a_resume(tmp_path: Path) -> None:
    for name in ("whole", "resumed"):
        if name == "resumed":
            killed(tmp_path / name, after=5)
            with (tmp_path / name / "trials.csv").open("a") as table:
                table.write("2,64,torn")
        Run(tmp_path / name)
    tables = [
        pd.read_csv(tmp_path / name / "trials.csv", dtype=str) for name in ("whole", "resumed")
    ]
    stays = ["kind", "key", "verdict", "witness", "reason", "tokens_per_s", "peak_device_bytes"]
    first, second = (t[stays].sort_values(stays[:3]).reset_index(drop=True) for t in tables)
    pd.testing.assert_frame_equal(first, second)


@pytest.mark.parametrize("name", ["grid", pytest.param("tpe", marks=pytest.mark.slow)])
def test_what_lacked_an_op_is_tried_again(tmp_path: Path, name: str) -> None:
    without = space(depth=(2,), micro_batch=(1, 8))
    among = with_offload(without)
    moved = set(among.candidates) - set(without.candidates)

    def lacking(job: Job) -> Result:
        if job.candidate not in moved:
            return ok(0.1)
        return Result(
            verdict=Verdict.UNSUPPORTED, reason="not compiled", lacks_op="CPUAdamBuilder"
        )

    first = Run(tmp_path, lacking, among, sampler=name)
    assert len(moved & set(first.runner.searched)) == 1
    again = Run(tmp_path, lambda job: ok(0.1), among, sampler=name)
    assert set(again.runner.searched) == moved
    assert again.study.ledger.settled == []


def test_what_was_running_is_told_as_failed_and_tried_again(tmp_path: Path) -> None:
    killed(tmp_path, after=5)
    before = open_journal(tmp_path, SPACE)
    states = [trial.state for trial in before.optuna_study.get_trials(deepcopy=False)]
    assert states.count(TrialState.FAIL) > 0
    assert TrialState.RUNNING not in states
    assert len(before.past.records) == 5
    resumed = Run(tmp_path)
    interrupted = [
        Candidate(**trial.params)
        for trial in before.optuna_study.get_trials(deepcopy=False)
        if trial.state == TrialState.FAIL and "outcome" not in trial.user_attrs
    ]
    tried = {r.candidate for r in resumed.told if r.outcome.measurement is not None}
    assert set(interrupted) & tried


def test_a_candidate_in_which_the_study_died_twice_comes_last(tmp_path: Path) -> None:
    def roomy(job: Job) -> Result:
        return ok(1.0)

    for after in (3, 0):
        with pytest.raises(Killed):
            Run(tmp_path, killing(after, roomy))
    suspects = open_journal(tmp_path, SPACE).past.suspects
    searched = Run(tmp_path, roomy).runner.searched
    assert len(suspects) == 1
    assert {searched[-1]} == suspects


def test_finals_that_were_made_are_not_made_again(tmp_path: Path) -> None:
    searches = sum(not job.fresh for job in Run(tmp_path / "whole").runner.jobs)
    killed(tmp_path / "study", after=searches + 1)
    resumed = Run(tmp_path / "study")
    assert len(resumed.runner.jobs) == 1
    finals = [c for purpose, c, _ in resumed.ended if purpose == "final"]
    assert {finals.count(c) for c in finals} == {2}


def test_a_resumed_study_goes_on_with_what_is_left_of_the_budget(tmp_path: Path) -> None:
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(2.0)
        return saturating(job)

    with pytest.raises(Killed):
        Run(tmp_path, killing(5, slow), now=now)
    journal = open_journal(tmp_path, SPACE)
    spent_s = journal.past.spent_s
    assert spent_s == 10.0
    resumed = Run(tmp_path, slow, now=now)
    new = [r for r in resumed.told if r not in journal.past.records and not r.outcome.witness]
    assert min(r.outcome.started_s for r in new) >= spent_s


def test_the_end_is_kept_until_a_new_run_begins(tmp_path: Path) -> None:
    open_journal(tmp_path, SPACE).end(StudyEnd(Ending.NOTHING_FITS, "nothing fits"), 12.5)
    again = open_journal(tmp_path, SPACE)
    assert again.past.ended == StudyEnd(Ending.NOTHING_FITS, "nothing fits")
    assert again.past.spent_s == 12.5
    again.begin(["--resume"], 90.0, {})
    assert open_journal(tmp_path, SPACE).past.ended is None
    (session,) = open_journal(tmp_path, SPACE).sessions
    assert (session["argv"], session["spent_s"], session["budget_s"]) == (["--resume"], 12.5, 90.0)
    assert open_journal(tmp_path, SPACE).past.spent_s == 12.5


# Builds that break.


def crashing(job: Job) -> Result:
    if job.candidate.checkpointing == "full":
        return Result(verdict=Verdict.CRASHED, reason="a bug")
    return saturating(job)


@pytest.mark.parametrize("name", ["grid", "frontier", "random"])
def test_a_build_that_broke_twice_is_tried_last(tmp_path: Path, name: str) -> None:
    done = Run(tmp_path, crashing, sampler=name)
    jobs = [job.candidate for job in done.runner.jobs if not job.fresh]
    for build in {c.build for c in jobs if c.checkpointing == "full"}:
        places = [place for place, c in enumerate(jobs) if c.build == build]
        last_sound = max(i for i, c in enumerate(jobs) if c.checkpointing == "none")
        assert sum(place < last_sound for place in places) <= 2


def test_a_build_that_broke_is_avoided_after_a_resume_too(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        Run(tmp_path, killing(6, crashing))
    jobs = [job.candidate for job in Run(tmp_path, crashing).runner.jobs if not job.fresh]
    sound = [place for place, c in enumerate(jobs) if c.checkpointing == "none"]
    assert jobs[: max(sound) + 1].count(jobs[-1]) == 0
