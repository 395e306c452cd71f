"""Studies that go on: nothing told is lost or tried again, and the end is the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from support.records import MIB, space
from support.scripted import Listener, ScriptedRunner, ok

from autotune.budget import Clock, StopFlag
from autotune.folder.journal import Journal, repair
from autotune.options import Options, UsageError
from autotune.outcome import Record, Verdict
from autotune.runner import Job, Result
from autotune.samplers import adapter as sampler
from autotune.space.space import Candidate, Space
from autotune.study.ending import Ended, Ending
from autotune.study.study import Study

SPACE = space(micro_batch=(1, 8))
PLENTY_S = 1e6
Answer = Callable[[Job], Result]


class Killed(BaseException):
    """What a power failure does to the process, as far as it can be done in one."""


def saturating(job: Job) -> Result:
    """Faster per token the more tokens; 1 MiB a token, so that the largest do not fit."""
    c = job.candidate
    step_s = 1e-3 * c.depth**3 * (c.tokens + 64) * (1.3 if c.checkpointing == "full" else 1.0)
    return ok(step_s, c.tokens * 6 * MIB)


class Run:
    """One run of the study in `folder`; it goes on with what is there."""

    def __init__(
        self, folder: Path, answer: Answer = saturating, among: Space = SPACE, **options: Any
    ) -> None:
        asked = Options(budget_s=PLENTY_S, **{"sampler": "grid", **options})
        self.runner = ScriptedRunner(answer)
        self.listener = Listener()
        proposals = sampler.make(among, asked, "cpu")
        self.journal = Journal(folder, proposals)
        self.stop = StopFlag()
        clock = Clock(asked.budget_s, time.monotonic())
        clock.go_on(self.journal.past.spent_s, asked.budget_s)
        self.study = Study(
            options=asked, space=among, device_kind="cpu", clock=clock, journal=self.journal,
            proposals=proposals, runner=self.runner, reporter=self.listener, stop=self.stop,
            publish=lambda records: None,
        )  # fmt: skip
        try:
            self.study.restore(self.journal.past.records)
            self.journal.rewrite([*self.study.records, *self.study.settled])
            self.study.run()
        finally:
            self.stop.restore()

    @property
    def ended(self) -> list[tuple[str, Candidate, Verdict]]:
        records = [*self.study.records, *self.study.settled]
        return sorted((r.kind, r.candidate, r.outcome.verdict) for r in records)


def killing(after: int, answer: Answer = saturating) -> Answer:
    """`answer`, until the process dies in the job that comes after so many."""
    jobs: list[Job] = []

    def until(job: Job) -> Result:
        jobs.append(job)
        if len(jobs) > after:
            raise Killed
        return answer(job)

    return until


def killed(folder: Path, after: int, **options: Any) -> None:
    with pytest.raises(Killed):
        Run(folder, killing(after), **options)


@pytest.mark.parametrize("name", ["grid", "frontier", "random", "tpe"])
def test_wherever_it_was_interrupted_the_same_is_tried_in_the_end(
    tmp_path: Path, name: str
) -> None:
    whole = Run(tmp_path / "whole", sampler=name)
    probes = len(whole.runner.jobs)
    for after in range(0, probes, 1 if name == "grid" else 6):
        folder = tmp_path / f"{after}"
        killed(folder, after, sampler=name)
        resumed = Run(folder, sampler=name)
        if name in ("grid", "frontier"):
            assert len(resumed.runner.jobs) == probes - after
            assert resumed.ended == whole.ended, after
        else:
            searched = [c for kind, c, _ in resumed.ended if kind == "search"]
            assert searched == sorted(SPACE.candidates), after


def test_a_study_that_is_interrupted_in_every_probe_ends_the_same(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    for _ in whole.runner.jobs[1:]:
        killed(tmp_path / "often", after=1)
    assert Run(tmp_path / "often").ended == whole.ended


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


def test_what_was_running_is_told_as_failed_and_tried_again(tmp_path: Path) -> None:
    killed(tmp_path, after=5)
    before = Journal(tmp_path, sampler.make(SPACE, Options(sampler="grid"), "cpu"))
    states = [trial.state for trial in before.study.get_trials(deepcopy=False)]
    assert states.count(TrialState.FAIL) > 0
    assert TrialState.RUNNING not in states
    assert len(before.past.records) == 5
    resumed = Run(tmp_path)
    interrupted = [
        Candidate(**trial.params)
        for trial in before.study.get_trials(deepcopy=False)
        if trial.state == TrialState.FAIL and "outcome" not in trial.user_attrs
    ]
    tried = {r.candidate for r in resumed.study.records if r.outcome.measurement is not None}
    assert set(interrupted) & tried


def test_a_candidate_in_which_the_study_died_twice_comes_last(tmp_path: Path) -> None:
    def roomy(job: Job) -> Result:
        return ok(1.0)

    for after in (3, 0):
        with pytest.raises(Killed):
            Run(tmp_path, killing(after, roomy))
    suspects = Journal(tmp_path, sampler.make(SPACE, Options(sampler="grid"), "cpu")).past.suspects
    searched = Run(tmp_path, roomy).runner.searched
    assert len(suspects) == 1
    assert {searched[-1]} == suspects


def test_finals_that_were_made_are_not_made_again(tmp_path: Path) -> None:
    searches = sum(not job.fresh for job in Run(tmp_path / "whole").runner.jobs)
    killed(tmp_path / "study", after=searches + 2)
    resumed = Run(tmp_path / "study")
    assert len(resumed.runner.jobs) == 4
    finals = [c for kind, c, _ in resumed.ended if kind == "final"]
    assert {finals.count(c) for c in finals} == {2}


def test_a_resumed_study_goes_on_with_what_is_left_of_the_budget(tmp_path: Path) -> None:
    def slow(job: Job) -> Result:
        time.sleep(0.02)
        return saturating(job)

    with pytest.raises(Killed):
        Run(tmp_path, killing(5, slow))
    journal = Journal(tmp_path, sampler.make(SPACE, Options(sampler="grid"), "cpu"))
    spent_s = journal.past.spent_s
    assert 0.1 <= spent_s < 10
    resumed = Run(tmp_path)
    new = [
        r for r in resumed.study.records if r not in journal.past.records and not r.outcome.witness
    ]
    assert min(r.outcome.started_s for r in new) >= spent_s


def test_the_end_is_kept_until_a_new_run_begins(tmp_path: Path) -> None:
    proposals = sampler.make(SPACE, Options(), "cpu")
    Journal(tmp_path, proposals).end(Ended(Ending.NOTHING_FITS, "nothing fits"), 12.5)
    again = Journal(tmp_path, proposals)
    assert again.past.ended == Ended(Ending.NOTHING_FITS, "nothing fits")
    assert again.past.spent_s == 12.5
    again.begin(["--resume"], 90.0, {})
    assert Journal(tmp_path, proposals).past.ended is None
    (session,) = Journal(tmp_path, proposals).sessions
    assert (session["argv"], session["spent_s"], session["budget_s"]) == (["--resume"], 12.5, 90.0)
    assert Journal(tmp_path, proposals).past.spent_s == 12.5


# Builds that break.


def crashing(job: Job) -> Result:
    if job.candidate.checkpointing == "full":
        return Result(Verdict.CRASHED, "a bug")
    return saturating(job)


@pytest.mark.parametrize("name", ["grid", "frontier", "random"])
def test_a_build_that_broke_twice_is_tried_only_when_nothing_else_is_left(
    tmp_path: Path, name: str
) -> None:
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


# Optuna's journal.


def told(folder: Path) -> list[Record]:
    return Journal(folder, sampler.make(SPACE, Options(), "cpu")).past.records


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("journal")
    killed(folder, after=6)
    return (folder / "optuna.log").read_bytes()


def test_a_journal_cut_at_any_byte_of_its_last_two_lines_keeps_all_told_before(
    journal: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal)
    records = told(tmp_path)
    data = path.read_bytes()  # with what was running told as failed
    start = data.rstrip(b"\n").rfind(b"\n")
    start = data.rfind(b"\n", 0, start) + 1
    for size in range(start, len(data) + 1):
        path.write_bytes(data[:size])
        assert told(tmp_path) == records, size
        assert path.read_bytes().endswith(b"\n")


def test_a_journal_cut_at_any_line_can_be_gone_on_with(journal: bytes, tmp_path: Path) -> None:
    lines = journal.splitlines(keepends=True)
    counts: list[int] = []
    for number in range(len(lines) + 1):
        (tmp_path / "optuna.log").write_bytes(b"".join(lines[:number]))
        counts.append(len(told(tmp_path)))
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_an_outcome_that_was_written_counts_though_its_state_was_not(
    journal: bytes, tmp_path: Path
) -> None:
    lines = journal.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"outcome"' in line)
    (tmp_path / "optuna.log").write_bytes(b"".join(lines[: last + 1]))
    assert len(told(tmp_path)) == 6


def test_zeros_after_a_power_failure_are_cut(journal: bytes, tmp_path: Path) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal + bytes(4096))
    assert repair(path) == 4096
    assert path.read_bytes() == journal


def test_damage_before_the_last_line_is_refused_and_left_alone(
    journal: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "optuna.log"
    lines = journal.splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"#" + lines[3], *lines[4:]])
    path.write_bytes(damaged)
    with pytest.raises(UsageError, match="line 4 is damaged"):
        told(tmp_path)
    assert path.read_bytes() == damaged


def test_a_journal_of_another_space_is_refused(journal: bytes, tmp_path: Path) -> None:
    (tmp_path / "optuna.log").write_bytes(journal)
    other = replace(SPACE, candidates=(Candidate(8, 64, 1),), axes={**SPACE.axes, "depth": (8,)})
    with pytest.raises(UsageError, match="no candidate of this study's space"):
        Journal(tmp_path, sampler.make(other, Options(), "cpu"))


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_repaired_or_refused_in_one_line(
    data: st.DataObject, journal: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "optuna.log").write_bytes(mutated(data, journal))
    try:
        told(folder)
    except UsageError as error:
        message = str(error)
    else:
        message = "no message"
    assert len(message.splitlines()) == 1


def mutated(data: st.DataObject, journal: bytes) -> bytes:
    """`journal` with some lines swapped, dropped or repeated, or some bytes changed."""
    lines: Sequence[bytes] = data.draw(
        st.lists(st.sampled_from(journal.splitlines(keepends=True)), max_size=30)
        | st.just(journal.splitlines(keepends=True))
    )
    found = bytearray(b"".join(lines))
    for _ in range(data.draw(st.integers(0, 3)) if found else 0):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    return bytes(found)
