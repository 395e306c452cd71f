"""Several probes at once: who runs them, who is told, and what holds as with one at a time."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import NoNodesError
from autotune.measure.runner import Job, Result, StopRequestedError
from autotune.result.folder.past import Ending
from autotune.space.candidate import Build, Candidate
from autotune.space.outcome import Record, Verdict
from autotune.study.finals import CLOSING_S, FINAL_ROUNDS
from autotune.study.neighbours import Neighbours
from autotune.study.predict.memory import Prediction
from autotune.study.records import SUSPICIOUS_LOSSES
from autotune.study.why_nothing import why_nothing
from autotune.study.work import Work
from tests.support.records import space
from tests.support.scripted import Listener
from tests.support.studies import Answer, Killed, Run, killing, open_journal, saturating

SPACE = space(micro_batch=(1, 8))
PATIENCE_S = 60.0
PREDICTED = Prediction(0, 0, 0)
LOST = Result(verdict=Verdict.SKIPPED, reason="node n1 was lost", put_off=True)


def meeting(slots: int) -> Answer:
    """`saturating`, where so many jobs are waited for before any of them ends, the first time."""
    barrier = threading.Barrier(slots)
    begun = iter(range(slots))

    def answer(job: Job) -> Result:
        if next(begun, None) is not None:
            barrier.wait(PATIENCE_S)
        return saturating(job)

    return answer


def searched(run: Run) -> list[Candidate]:
    return sorted(job.candidate for each in run.runners for job in each.jobs if not job.fresh)


def test_a_probe_runs_in_each_slot_at_the_same_time(tmp_path: Path) -> None:
    run = Run(tmp_path, meeting(3), SPACE, slots=3)
    assert all(each.jobs for each in run.runners)


@pytest.mark.parametrize("name", ["grid", "frontier", "random", "tpe"])
def test_no_candidate_is_asked_for_twice(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path, meeting(3), SPACE, slots=3, sampler=name)
    assert max(Counter(searched(run)).values()) == 1
    if name != "frontier":
        assert searched(run) == sorted(SPACE.candidates)


def test_all_is_told_and_written_by_the_thread_that_runs_the_study(tmp_path: Path) -> None:
    threads: set[int] = set()
    probing: set[int] = set()

    class Watched(Run):
        def __init__(self) -> None:
            meet = meeting(2)

            def answer(job: Job) -> Result:
                probing.add(threading.get_ident())
                return meet(job)

            super().__init__(tmp_path, answer, SPACE, slots=2)

    def told(self: object, record: Record, incumbent: Record | None) -> None:
        threads.add(threading.get_ident())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.scripted.Listener.told", told)
        Watched()
    assert threads == {threading.get_ident()}
    assert len(probing) == 2
    assert not probing & threads


def test_trials_bounds_the_probes_of_all_slots_together(tmp_path: Path) -> None:
    run = Run(tmp_path, meeting(4), SPACE, slots=4, trials=6, sampler="random")
    assert len(searched(run)) == 6


def test_a_round_stays_in_one_slot_and_build(tmp_path: Path) -> None:
    run = Run(tmp_path, meeting(2), space(), slots=2, sampler="random", trials=16)
    journal = open_journal(tmp_path, space()).optuna_study
    of_trial = {
        number: trial.user_attrs["began"]["round"]
        for trial in journal.trials
        if "began" in trial.user_attrs
        for number in [trial.number]
    }
    builds: dict[tuple[int, ...], set[Build]] = {}
    for record in run.told:
        if record.purpose == "search" and record.number in of_trial:
            builds.setdefault(tuple(of_trial[record.number]), set()).add(record.candidate.build)
    assert len(builds) > 2
    assert all(len(each) == 1 for each in builds.values())


def losing(candidate: Candidate, times: int) -> Answer:
    """`saturating`, on nodes of which so many are lost while they run `candidate`."""
    left = iter(range(times))

    def answer(job: Job) -> Result:
        if job.candidate == candidate and next(left, None) is not None:
            return LOST
        return saturating(job)

    return answer


def test_what_a_lost_node_ran_is_no_verdict_and_is_asked_for_again(tmp_path: Path) -> None:
    lost = SPACE.candidates[0]
    run = Run(tmp_path, losing(lost, 1), SPACE, slots=2, sampler="grid")
    mine = [r.outcome for r in run.told if r.candidate == lost and r.purpose == "search"]
    assert [each.verdict for each in mine] == [Verdict.SKIPPED, Verdict.OK]
    assert mine[0].reason == "node n1 was lost"
    assert set(SPACE.candidates) == {c for c, v in run.verdicts().items() if v == Verdict.OK}


def test_what_takes_node_after_node_with_it_comes_last_and_is_given_up(tmp_path: Path) -> None:
    lost = SPACE.candidates[0]
    run = Run(tmp_path, losing(lost, 1000), SPACE, sampler="grid")
    asked = [job.candidate for job in run.runner.jobs if not job.fresh]
    assert asked.count(lost) == SUSPICIOUS_LOSSES + 1
    assert asked[-1] == lost
    assert run.study.ledger.choice() is not None


def test_a_slot_that_lost_its_last_node_in_a_probe_is_given_no_other(tmp_path: Path) -> None:
    lost = SPACE.candidates[0]

    def answer(job: Job) -> Result:
        return replace(LOST, gone="node n1 was lost") if job.candidate == lost else saturating(job)

    run = Run(tmp_path, answer, SPACE, slots=SUSPICIOUS_LOSSES + 2, sampler="grid")
    last = [each.jobs[-1].candidate == lost for each in run.runners]
    assert last.count(False) == 1  # what may be the cause does not take the last one with it
    assert run.study.lost == ""
    alone = Run(tmp_path / "alone", answer, SPACE, sampler="grid")
    assert [r.outcome.reason for r in alone.told if r.candidate == lost] == ["node n1 was lost"]
    assert alone.study.lost == "node n1 was lost"


def test_a_final_that_takes_node_after_node_with_it_is_not_made_again(tmp_path: Path) -> None:
    best = Run(tmp_path / "one", saturating, SPACE, sampler="grid").choice
    winner = best.record.candidate

    def answer(job: Job) -> Result:
        return LOST if job.fresh and job.candidate == winner else saturating(job)

    run = Run(tmp_path / "two", answer, SPACE, sampler="grid")
    finals = [r.candidate for r in run.told if r.purpose == "final"]
    assert finals.count(winner) == SUSPICIOUS_LOSSES
    assert set(finals) > {winner}


def test_groups_in_turns_have_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbours = Neighbours(2, lambda: False, Listener())
    run = Run(tmp_path, saturating, SPACE, slots=2, trials=2, neighbours=neighbours)
    slots, finals, clock = run.study._slots, run.study._finals, run.study._clock
    monkeypatch.setattr(finals, "_rounds", lambda candidate: 0)
    monkeypatch.setattr(finals, "_start_s", lambda record: 1.0)
    monkeypatch.setattr(finals, "_steps_s", lambda record, micro_steps: 10.0)
    rounds = FINAL_ROUNDS * len(finals._finalists())
    assert rounds >= 2
    neighbours.in_turns = False
    assert finals.needed_s() == CLOSING_S + rounds * 11.0 / 2
    neighbours.in_turns = True
    assert finals.needed_s() == CLOSING_S + rounds * (1.0 / 2 + 10.0)
    one, _ = slots
    one.work = Work(job=run.runner.jobs[0], predicted=PREDICTED, until_s=0.0, told=print)
    assert slots.queue_s(10.0) == 10.0
    # Only the queue is too long: it is asked again once that has ended, and nothing is given up.
    now = clock.elapsed_s()
    clock.go_on(0.0, now + CLOSING_S + 15.0)
    assert finals._next_in_time(list(slots)[1:]) is None
    assert not finals.out_of_time
    neighbours.in_turns = False
    assert slots.queue_s(10.0) == 0.0


GONE = NoNodesError("node n1 is gone")


def test_however_many_slots_go_at_once_nothing_is_given_up(tmp_path: Path) -> None:
    left = iter(range(5))

    def answer(job: Job) -> Result:
        if next(left, None) is not None:
            raise GONE
        return saturating(job)

    run = Run(tmp_path, answer, SPACE, slots=6, sampler="grid")
    assert {c for c, v in run.verdicts().items() if v == Verdict.OK} == set(SPACE.candidates)
    assert "node n1 is gone; 1 of the groups go on" in run.listener.notes
    assert run.study.lost == ""


def test_where_no_node_is_left_the_study_ends_with_what_it_has(tmp_path: Path) -> None:
    run = Run(tmp_path, killing(3, error=GONE), SPACE, slots=2, sampler="grid")
    assert run.choice
    assert run.study.lost == "node n1 is gone"
    assert "nothing more can be run: node n1 is gone" in run.listener.notes


def test_where_no_node_is_left_and_nothing_was_measured_it_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path, killing(0, error=GONE), SPACE, slots=2)
    ended = why_nothing(run.records, SPACE, None, 60.0, lost=run.study.lost)
    assert ended.code == Ending.NO_MEASUREMENT
    assert ended.message == "nothing could be measured: node n1 is gone"


def test_wherever_it_was_interrupted_the_same_is_tried_in_the_end(tmp_path: Path) -> None:
    for after in (0, 1, 3, 5):
        folder = tmp_path / str(after)
        with pytest.raises(Killed):
            Run(folder, killing(after), SPACE, slots=3, sampler="grid")
        resumed = Run(folder, among=SPACE, slots=3, sampler="grid")
        tried = [c for purpose, c, _ in resumed.ended if purpose == "search"]
        assert tried == sorted(SPACE.candidates)


def test_a_stop_excuses_all_that_ran(tmp_path: Path) -> None:
    for _ in range(3):
        barrier = threading.Barrier(2)

        def stopped(job: Job, barrier: threading.Barrier = barrier) -> Result:
            barrier.wait(PATIENCE_S)
            raise StopRequestedError

        run = Run(tmp_path, stopped, SPACE, slots=2, sampler="grid")
        assert run.listener.notes == ["stopped by the user"]
    past = open_journal(tmp_path, SPACE).past
    assert past.suspects == set()
    assert len(past.interrupted) == 2


def test_final_rounds_of_a_candidate_rotate_over_the_slots(tmp_path: Path) -> None:
    run = Run(tmp_path, meeting(2), SPACE, slots=2)
    best = run.choice
    rounds = [
        sum(job.fresh and job.candidate == best.record.candidate for job in each.jobs)
        for each in run.runners
    ]
    assert min(rounds) >= 1
