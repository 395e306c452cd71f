"""When a script is launched for its evaluation and its save, and what a study makes of that."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.runner import Job, Result
from autotune.result.making import unseen
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.space.workload import NO_PHASES
from autotune.study.finals import PHASES_SHARE
from autotune.wire.budget import VirtualTime
from autotune.wire.reports import InPhase, Peaks
from tests.support.launches import space_of
from tests.support.records import MIB, space
from tests.support.scripted import ok
from tests.support.studies import Killed, Run, killing

ARGUMENTS = "--eval_steps 5 --save_steps 5"


def among(phase_args: str = ARGUMENTS) -> Space:
    script = "true train.py --batch {micro_batch}"
    return space_of(script, micro_batch="1,2,4", seq_len="", phase_args=phase_args)


def peaks(job: Job, mib: int) -> dict[str, InPhase]:
    """Of a training that needs 100 MiB, and an evaluation that needs more."""
    each = {"train": (100, 0), "evaluate": (mib, 2), "save": (100, 1)}
    return {
        name: InPhase(peaks=Peaks.same(size * MIB), seconds=float(count), count=count)
        for name, (size, count) in each.items()
    }


def evaluating(mib_a_sample: int = 100) -> Callable[[Job], Result]:
    """A script that is the faster the more samples it gets, and evaluates as many."""

    def answer(job: Job) -> Result:
        samples = job.candidate.micro_batch
        found = ok(1 + samples, 100 * MIB)
        if not job.phases:
            return found
        seen = peaks(job, max(100, mib_a_sample * samples))
        largest = Peaks.largest([each.peaks for each in seen.values()])
        return replace(
            found, report=replace(found.reported, step_s=[], peaks=largest, phases=seen)
        )

    return answer


def study(folder: Path, answer: Callable[[Job], Result], of: Space | None = None, **o: Any) -> Run:
    return Run(folder, answer, of or among(), **{"sampler": "grid"} | o)


def launched(run: Run) -> list[Candidate]:
    """For their phases."""
    return [job.candidate for job in run.runner.jobs if job.phases]


def test_only_the_winner_is_launched_for_its_phases_once_and_after_its_finals(
    tmp_path: Path,
) -> None:
    run = study(tmp_path, evaluating())
    jobs = run.runner.jobs
    assert [job.candidate.micro_batch for job in jobs if job.fresh] == [4, 4, 4]
    assert [job.phases for job in jobs if job.fresh] == [False, False, True]
    assert len(run.study.ledger.finals) == 2
    record = run.choice.record
    assert (run.choice.confirmed, record.measured.step.steps) == (True, 12)
    assert record.measured.phases["evaluate"].peaks.device_bytes == 400 * MIB
    assert record.measured.peaks.device_bytes == 400 * MIB
    assert unseen(record.measured.phases) == ()


def test_whether_it_has_room_for_them_is_known_before_more_rounds_are_made(
    tmp_path: Path,
) -> None:
    made: list[Job] = []

    def answer(job: Job) -> Result:  # of which finals differ
        made.append(job)
        found = evaluating()(job)
        step_s = [each * (1 + len(made) % 2) for each in found.reported.step_s]
        return replace(found, report=replace(found.reported, step_s=step_s))

    fresh = [job.phases for job in study(tmp_path, answer).runner.jobs if job.fresh]
    assert fresh[:4] == [False, False, True, False]
    assert sum(fresh) == 1


def test_what_needs_no_phases_is_not_launched_for_them(tmp_path: Path) -> None:
    run = study(tmp_path, evaluating(), among(NO_PHASES))
    assert launched(run) == []
    assert run.choice.record.measured.phases == {}


@pytest.mark.parametrize("seen", [True, False])
def test_without_arguments_what_no_step_showed_is_waited_for_after_all(
    tmp_path: Path, seen: bool
) -> None:
    """It may not fit; then the next best comes up."""
    limit_mib, now = among("").limits.limit_bytes // MIB, VirtualTime()

    def answer(job: Job) -> Result:
        now.advance(2.0)
        found = evaluating(limit_mib // 3)(job)
        phases = peaks(job, 100) if seen else found.reported.phases
        return replace(found, report=replace(found.reported, phases=phases))

    run = study(tmp_path, answer, among(""), now=now, budget_s=900.0)
    assert [c.micro_batch for c in launched(run)] == ([] if seen else [4, 2])
    assert (run.choice.record.candidate.micro_batch, run.choice.confirmed) == (4 if seen else 2, 1)
    for until_s in run.listener.untils_s.get("phases", []):
        assert until_s < 100  # for as long as the study took, and not for half of its budget


def test_a_model_is_launched_for_its_phases_too(tmp_path: Path) -> None:
    plain = space(depth=(2,), micro_batch=(1, 2, 4))
    workload = replace(plain.workload, eval_batch=8)
    run = study(tmp_path, evaluating(), replace(plain, workload=workload))
    [winner] = launched(run)
    assert winner == run.choice.record.candidate
    assert run.choice.record.measured.phases["evaluate"].peaks.device_bytes > 100 * MIB


def test_what_breaks_in_evaluation_makes_room_for_the_next_best(tmp_path: Path) -> None:
    limit_mib = among().limits.limit_bytes // MIB
    run = study(tmp_path, evaluating(limit_mib // 3))
    assert [c.micro_batch for c in launched(run)] == [4, 2]
    assert run.choice.record.candidate.micro_batch == 2
    assert run.choice.confirmed
    lost = next(r for r in run.told if r.purpose == "phases")
    assert lost.outcome.verdict is Verdict.OVER_CEILING
    assert "in evaluation" in lost.outcome.reason


def test_arguments_that_the_script_does_not_take_cost_nobody_the_result(tmp_path: Path) -> None:
    def answer(job: Job) -> Result:
        return Result(verdict=Verdict.CRASHED) if job.phases else evaluating()(job)

    run = study(tmp_path, answer)
    assert [c.micro_batch for c in launched(run)] == [4]
    assert run.choice.record.candidate.micro_batch == 4
    assert run.choice.confirmed
    assert unseen(run.choice.record.measured.phases) == ("evaluate", "save")


@pytest.mark.parametrize("after", [4, 5, 6])
def test_wherever_it_was_interrupted_the_winner_is_launched_for_its_phases(
    tmp_path: Path, after: int
) -> None:
    """Before the last final, in the launch for phases, and after that."""
    answer = evaluating()
    try:
        study(tmp_path, killing(after, answer))
    except Killed:
        assert after < 6
    resumed = study(tmp_path, answer)
    assert len(launched(resumed)) == (after < 6)
    assert resumed.choice.confirmed
    assert unseen(resumed.choice.record.measured.phases) == ()
    assert resumed.choice.record.measured.peaks.device_bytes == 400 * MIB


@pytest.mark.parametrize("budget_s", [100.0, 400.0])
def test_such_a_launch_has_half_of_what_is_left_and_finals_leave_time_for_it(
    tmp_path: Path, budget_s: float
) -> None:
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(12.0)
        return replace(evaluating()(job), group_start_s=8.0)

    run = study(tmp_path, slow, now=now, budget_s=budget_s)
    assert len(launched(run)) == 1
    record = next(r for r in run.told if r.purpose == "phases")
    (until_s,) = run.listener.untils_s["phases"]
    began_s = record.outcome.started_s
    if budget_s > 300:
        assert until_s == pytest.approx(began_s + PHASES_SHARE * (budget_s - began_s))
    assert until_s < budget_s


def test_a_launch_that_took_the_rest_of_the_budget_is_not_said_to_lack_time(
    tmp_path: Path,
) -> None:
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(99.5 - now() if job.phases else 12.0)
        return replace(evaluating()(job), group_start_s=8.0)

    run = study(tmp_path, slow, now=now, budget_s=100.0)
    assert len(launched(run)) == 1
    assert not any("no time to evaluate" in note for note in run.listener.notes)


def test_where_finals_lack_time_one_estimate_is_said(tmp_path: Path) -> None:
    """Though a final was slower than the search."""
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(12.0)
        found = evaluating()(job)
        step_s = [each * (3 if job.fresh else 1) for each in found.reported.step_s]
        return replace(found, report=replace(found.reported, step_s=step_s), group_start_s=8.0)

    run = study(tmp_path, slow, among(""), now=now, budget_s=100.0)
    said = run.study.next_step("here") or ""
    lacking_s = re.search(r"a launch takes (\d+) s", said)
    assert lacking_s is not None, said
    assert any(f"one takes {lacking_s[1]} s" in note for note in run.listener.notes)
