"""The study's decisions, on a runner that answers from formulas."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from optuna.trial import TrialState

from autotune.measure.runner import Job, Result, StopRequestedError
from autotune.result.choice import Certainty
from autotune.result.folder.ask import Ask
from autotune.result.folder.provenance import rank_versions
from autotune.space.candidate import Build, Candidate
from autotune.space.options import Options
from autotune.space.outcome import Verdict, judge
from autotune.space.space import Space
from autotune.space.workload import GlobalBatch
from autotune.study.finals import CLOSING_S, FINALS_SHARE, FIRST_ROUNDS, MOST_ROUNDS, Finals
from autotune.study.prober import ATTEMPTS, EMULATED_S, rule_for
from autotune.study.samplers.frontier import Frontier, Proposal
from autotune.study.search import (
    DARING,
    EVEN,
    LIKELY,
    Search,
    first_candidate,
    least_chance,
)
from autotune.study.study import TRACE_S
from autotune.study.work import NextWork
from autotune.wire import emulated
from autotune.wire.budget import VirtualTime
from autotune.wire.reports import Conditions, Peaks
from tests.support.launches import PLAIN, space_of
from tests.support.records import MIB, QUIET, space, with_offload
from tests.support.scripted import ScriptedRunner, ok
from tests.support.studies import Killed, Run, killing, saturating

Runs = Callable[..., Run]
SPACE = space()
LIMIT_BYTES = SPACE.limits.limit_bytes
BUSY = replace(QUIET, busy_cpu_s=9.9, own_cpu_s=1.0)


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    def one(answer: Callable[[Job], Result] = saturating, among: Space = SPACE, **o: Any) -> Run:
        return Run(tmp_path / "study", answer, among, **{"sampler": "tpe"} | o)

    return one


# The search.


@pytest.mark.parametrize("name", ["tpe", "random", "grid"])
def test_every_sampler_tries_each_candidate_once_and_stops(run: Runs, name: str) -> None:
    done = run(sampler=name)
    assert sorted(done.verdicts()) == sorted(SPACE.candidates)
    assert len(done.runner.searched) == len(set(done.runner.searched))
    assert "search ended: every candidate of the space was tried" in done.listener.notes


@pytest.mark.parametrize(
    ("probes", "lost", "finals", "lost_finals", "least"),
    [
        (0, 0, 0, 0, EVEN),  # one may always be lost
        (5, 1, 0, 0, LIKELY),
        (5, 0.5, 0, 0, LIKELY),  # what runs may be
        (24, 1, 0, 0, EVEN),
        (10, 0, 6, 0, DARING),
        (10, 1, 6, 0, LIKELY),  # 2 of 17 are more than 8 %
        (10, 1, 14, 0, DARING),
        (10, 0, 14, 1, DARING),
        (10, 1, 14, 1, LIKELY),
    ],
)
def test_what_may_not_fit_is_worth_a_probe_while_few_were_lost(
    probes: int, lost: float, finals: int, lost_finals: int, least: float
) -> None:
    assert least_chance(probes, lost, finals, lost_finals) == least


def test_what_is_uncertain_comes_after_finals(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    best = Frontier.best

    def noted(self: Frontier, ask: Ask) -> Proposal:
        asked.append(ask.least_chance)
        return best(self, ask)

    monkeypatch.setattr(Frontier, "best", noted)
    done = run(sampler="frontier", finals=3)
    assert [least for least, _ in itertools.groupby(asked)] == [EVEN, DARING]
    assert any(job.fresh for job in done.runner.jobs)
    asked.clear()
    run(sampler="frontier", finals=3)  # goes on, and those finals left it no time that is known of
    assert [least for least, _ in itertools.groupby(asked)] == [EVEN, DARING]


def test_who_is_told_of_a_probe_is_told_until_when_its_part_of_the_budget_is(run: Runs) -> None:
    done = run(trials=3, budget_s=600.0)
    least_s = (1 - FINALS_SHARE) * 600.0
    assert len(done.listener.untils_s["search"]) == 3
    assert all(
        least_s <= until_s < 600.0 - CLOSING_S for until_s in done.listener.untils_s["search"]
    )
    assert set(done.listener.untils_s["final"]) == {600.0 - CLOSING_S}


def test_trials_bounds_the_probes_of_the_search(run: Runs) -> None:
    assert len(run(trials=5).runner.searched) == 5


@pytest.mark.parametrize(("budget_s", "few"), [(100.0, 5), (400.0, None)])
def test_a_budget_for_few_launches_of_a_script_is_said_after_the_first_and_at_the_end(
    run: Runs, budget_s: float, few: int | None
) -> None:
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(20.0)
        found = ok(0.1 / job.candidate.tokens)
        return replace(found, group_start_s=19.0)

    among = space_of(PLAIN, micro_batch="1:64")
    done = run(slow, among, now=now, budget_s=budget_s, sampler="grid")
    said = done.study.next_step("here")
    first = [note for note in done.listener.notes if note.startswith("a launch takes about")]
    if few is None:
        assert not first
        assert not (said or "").startswith("Only")
        return
    assert first == [f"a launch takes about 19 s: 1:40 is enough for about {few} of 64 candidates"]
    assert said is not None
    tried = len(done.runner.searched)
    assert said.startswith(f"Only {tried} of 64 candidates w")
    assert said.endswith("a launch takes 19 s here. Go on:\nautotune --resume here --budget 7m")


@pytest.mark.parametrize(("rival", "said"), [(0.7, "More finals would tell more. "), (0.4, "")])
def test_where_another_candidate_is_likelier_the_next_step_has_one_budget(
    run: Runs, monkeypatch: pytest.MonkeyPatch, rival: float, said: str
) -> None:
    done = run(budget_s=3600.0)
    choice = done.study.ledger.choice()
    assert choice is not None
    sure = Certainty(best=0.3, equal=0.3, next=choice.record.candidate, next_best=rival)
    found = replace(choice, confirmed=True, unconfirmed=None, certainty=sure)
    monkeypatch.setattr(done.study.ledger, "choice", lambda: found)
    step = done.study.next_step("here") or ""
    assert step.startswith(said and f"{said}Go on:\nautotune --resume here --budget ")
    assert (step == "") == (said == "")


def test_a_budget_that_ends_with_the_last_candidate_of_a_script_was_enough(run: Runs) -> None:
    now = VirtualTime()

    def slow(job: Job) -> Result:
        now.advance(20.0)
        return replace(ok(0.1 / job.candidate.tokens), group_start_s=19.0)

    among = space_of(PLAIN, micro_batch="1:4")
    done = run(slow, among, now=now, budget_s=105.0, sampler="grid")
    assert len(done.runner.searched) == 4
    assert "candidates" not in (done.study.next_step("here") or "")


def test_a_round_stays_in_one_build_and_ascends_in_tokens(run: Runs) -> None:
    first_round = run(trials=4).runner.searched
    assert len({c.build for c in first_round}) == 1
    assert [c.tokens for c in first_round] == sorted(c.tokens for c in first_round)


def test_the_same_seed_proposes_the_same_candidates(tmp_path: Path) -> None:
    runs = [Run(tmp_path / name, saturating, SPACE, trials=8, seed=3) for name in "ab"]
    assert runs[0].runner.searched == runs[1].runner.searched


@pytest.mark.parametrize("name", ["frontier", "tpe"])
@pytest.mark.parametrize("among", [SPACE, with_offload(SPACE)], ids=["plain", "two engines"])
def test_a_dry_run_names_what_is_probed_first(run: Runs, name: Any, among: Space) -> None:
    first = first_candidate(Options.of(seed=5, sampler=name), among, "cpu")
    assert first == run(among=among, trials=9, seed=5, sampler=name).runner.searched[0]


def test_a_larger_candidate_than_one_that_ran_out_is_skipped_with_its_witness(run: Runs) -> None:
    def answer(job: Job) -> Result:
        small = job.candidate.micro_batch < 4
        return saturating(job) if small else Result(verdict=Verdict.OOM, reason="ran out")

    done = run(answer)
    skipped = done.study.ledger.settled
    witnesses = {c.key: c for c in SPACE.candidates}
    assert skipped
    for record in skipped:
        assert record.candidate.covers(witnesses[record.outcome.witness])
        assert record.candidate not in done.runner.searched


def test_nothing_is_skipped_for_a_crash(run: Runs) -> None:
    def answer(job: Job) -> Result:
        one = job.candidate == Candidate(depth=2, seq_len=64, micro_batch=2)
        return Result(verdict=Verdict.CRASHED, reason="broke") if one else saturating(job)

    assert Verdict.SKIPPED not in run(answer).verdicts().values()


@pytest.mark.parametrize("lacks_op", ["", "CPUAdamBuilder"])
def test_an_unsupported_stage_and_offload_is_found_once(run: Runs, lacks_op: str) -> None:
    def answer(job: Job) -> Result:
        if job.candidate.offload == "none":
            return saturating(job)
        return Result(verdict=Verdict.UNSUPPORTED, reason="not with this", lacks_op=lacks_op)

    done = run(answer, with_offload(SPACE))
    verdicts = done.verdicts()
    moved = [v for c, v in verdicts.items() if c.offload == "optimizer"]
    assert moved.count(Verdict.UNSUPPORTED) == 1
    assert moved.count(Verdict.SKIPPED) == len(SPACE.candidates) - 1
    assert {verdicts[c] for c in SPACE.candidates} == {Verdict.OK}


def test_while_nothing_fits_the_smallest_open_candidate_comes_next(run: Runs) -> None:
    done = run(lambda job: Result(verdict=Verdict.OOM, reason="ran out"), trials=3)
    assert done.runner.searched[-1].tokens == 64
    assert done.runner.searched[-1].depth == 2


def test_the_host_ceiling_says_how_much_of_the_peak_is_offload() -> None:
    peaks = replace(Peaks.same(1), host_bytes=SPACE.limits.host_limit_bytes + 1)
    verdict, reason = judge(peaks, SPACE.limits, offloaded_bytes=3 * 2**30)
    assert verdict is Verdict.OVER_HOST_CEILING
    assert "about 3.00 GiB of it is offload" in reason


def test_the_opening_varies_one_axis_of_the_middle_build_at_a_time(run: Runs) -> None:
    tried = {c.build for c in run(trials=12).runner.searched}
    assert tried == {Build(depth=4), Build(depth=2), Build(depth=4, checkpointing="full")}


@pytest.mark.parametrize(
    ("peaks", "verdict"),
    [
        ({"device_bytes": LIMIT_BYTES + 1}, Verdict.OVER_CEILING),
        ({"alloc_retries": 1}, Verdict.OVER_CEILING),
        ({"host_bytes": SPACE.limits.host_limit_bytes + 1}, Verdict.OVER_HOST_CEILING),
    ],
)
def test_what_ran_over_a_limit_does_not_fit(run: Runs, peaks: Any, verdict: Verdict) -> None:
    def answer(job: Job) -> Result:
        report = ok(0.1).reported
        return Result(
            verdict=Verdict.OK, report=replace(report, peaks=replace(report.peaks, **peaks))
        )

    assert run(answer, trials=1).told[0].outcome.verdict == verdict


def test_later_probes_know_how_fast_they_must_be(run: Runs) -> None:
    jobs = run(trials=3).runner.jobs
    assert jobs[0].needed_step_s is None
    assert jobs[1].needed_step_s is not None


def test_a_study_in_which_all_probes_break_ends_early(run: Runs) -> None:
    done = run(lambda job: Result(verdict=Verdict.CRASHED, reason="no torch"))
    assert len(done.runner.jobs) == 3


def test_a_script_that_fails_is_tried_with_the_smallest_micro_batch(run: Runs) -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="1:16", seq_len="")

    def answer(job: Job) -> Result:
        return Result(verdict=Verdict.CRASHED) if job.candidate.micro_batch > 8 else ok(0.1)

    searched = run(answer, among, sampler="frontier", trials=3).runner.searched
    assert searched[0].micro_batch > 8
    assert searched[1].micro_batch == 1


def test_a_short_study_of_a_script_on_a_busy_machine_tries_far_apart_sizes(run: Runs) -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="1:64", seq_len="")
    draw = random.Random(0).gauss

    def noisy(job: Job) -> Result:
        samples = job.candidate.micro_batch
        return ok((samples + 8) * math.exp(draw(0.0, 0.3)), samples * MIB, BUSY)

    searched = run(noisy, among, sampler="frontier", trials=4).runner.searched
    sizes = sorted({c.micro_batch for c in searched})
    assert sizes[-1] >= 4 * sizes[0]
    assert all(larger >= 1.2 * size for size, larger in itertools.pairwise(sizes))


def test_no_probe_is_begun_that_a_launch_leaves_no_time_for(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    among = space_of("true train.py --batch {micro_batch}", micro_batch="1:64", seq_len="")
    now, late = VirtualTime(), list[float]()
    plain = ScriptedRunner.run

    def launch(runner: ScriptedRunner, job: Job, deadline: float) -> Result:
        now.advance(22.0)
        late.append(now() - deadline)
        found = plain(runner, job, deadline)
        runner.live_build = None
        return replace(found, group_start_s=18.0)

    monkeypatch.setattr(ScriptedRunner, "run", launch)
    run(lambda job: ok(0.4), among, now=now, budget_s=100.0, sampler="frontier")
    assert len(late) == 4
    assert max(late) <= 0


def test_a_failed_repeat_does_not_discard_a_disturbed_measurement(run: Runs) -> None:
    answers = iter(
        [ok(0.1, 1, BUSY), Result(verdict=Verdict.CRASHED), Result(verdict=Verdict.CRASHED)]
    )
    done = run(lambda job: saturating(job) if job.fresh else next(answers), trials=1)
    assert done.told[0].outcome.verdict is Verdict.OK


# Measuring again.


def test_a_disturbed_timing_is_measured_again_and_the_calmest_is_kept(run: Runs) -> None:
    busy = [replace(QUIET, busy_cpu_s=9.9 - i, own_cpu_s=1.0) for i in range(ATTEMPTS)]
    answers = iter([ok(0.3, 1, busy[1]), ok(0.1, 1, busy[2]), ok(0.2, 1, busy[0])])
    done = run(lambda job: saturating(job) if job.fresh else next(answers), trials=1)
    record = done.told[0]
    assert record.outcome.attempts == ATTEMPTS
    assert record.outcome.measurement is not None
    assert record.outcome.measurement.step.median == 0.1


def test_a_timing_is_cut_short_only_where_it_may_be_repeated(run: Runs) -> None:
    jobs = run(lambda job: ok(0.1, 1, BUSY), trials=2).runner.jobs
    may_end_early = [job.rule.calm < 1 for job in jobs]
    # Where every attempt was disturbed, others are the norm, and nothing is repeated any more.
    assert may_end_early[: ATTEMPTS + 1] == [True] * (ATTEMPTS - 1) + [False, False]


def test_where_heat_is_the_norm_repeating_stops(run: Runs) -> None:
    def hot(job: Job) -> Result:
        result = saturating(job)
        conditions = replace(QUIET, thermally_throttled=True)
        return replace(result, report=replace(result.reported, conditions=conditions))

    attempts = [r.outcome.attempts for r in run(hot, trials=3).told]
    assert attempts == [ATTEMPTS, 1, 1, 1, 1]


def test_a_timing_beside_a_busy_neighbour_of_the_device_is_repeated(run: Runs) -> None:
    busy = replace(QUIET, others_share=0.3)
    done = run(lambda job: ok(0.1, 1, busy), trials=1).told[0].outcome
    assert done.attempts == ATTEMPTS
    assert done.measurement is not None
    assert done.measurement.disturbed_share == 0.3


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.OVER_CEILING])
def test_an_oom_in_a_warm_group_is_tried_in_a_fresh_one(run: Runs, verdict: Verdict) -> None:
    left_behind = Candidate(depth=4, seq_len=128, micro_batch=4)
    too_large = Candidate(depth=4, seq_len=128, micro_batch=8)

    def answer(job: Job) -> Result:
        lacks = job.candidate == too_large or (job.candidate == left_behind and not job.fresh)
        if not lacks:
            return saturating(job)
        if verdict == Verdict.OOM:
            return Result(verdict=verdict, reason="ran out", warm=not job.fresh)
        return replace(ok(0.1, LIMIT_BYTES + 1), warm=not job.fresh)

    done = run(answer, sampler="grid")
    assert done.verdicts()[left_behind] is Verdict.OK
    assert done.verdicts()[too_large] is verdict
    jobs = done.runner.jobs
    assert [job.fresh for job in jobs if job.candidate == too_large] == [False, True]
    assert [job.fresh for job in jobs if job.candidate == left_behind][:2] == [False, True]


def beside_others(taken: int, peak: int) -> Result:
    """A probe while others took memory of its device."""
    return ok(0.1, peak, replace(QUIET, foreign_bytes=taken))


@pytest.mark.parametrize(("others", "attempts"), [(0.005, 1), (0.5, 2)])
@pytest.mark.parametrize(
    ("first", "alone"),
    [
        (lambda taken: Result(verdict=Verdict.OOM, foreign_bytes=taken), Verdict.OOM),
        (lambda taken: beside_others(taken, 1), Verdict.OK),
        (lambda taken: beside_others(taken, LIMIT_BYTES + 1), Verdict.OVER_CEILING),
    ],
    ids=["oom", "ok", "over_ceiling"],
)
def test_what_others_that_took_memory_may_have_caused_is_repeated(
    run: Runs, others: float, attempts: int, first: Callable[[int], Result], alone: Verdict
) -> None:
    seen = iter([first(int(others * SPACE.limits.capacity_bytes))])
    done = run(lambda job: next(seen, None) or saturating(job), trials=1)
    record = done.told[0]
    assert record.outcome.attempts == attempts
    assert record.outcome.verdict is (alone if attempts == 1 else Verdict.OK)
    assert [job.fresh for job in done.runner.jobs[:attempts]] == [False, True][:attempts]


def test_the_last_attempt_too_needs_a_fresh_group_to_lack_memory(run: Runs) -> None:
    short = replace(ok(0.1, LIMIT_BYTES + 1), warm=True)
    answers = iter([ok(0.1, 1, BUSY)] * (ATTEMPTS - 1) + [short])
    done = run(lambda job: saturating(job) if job.fresh else next(answers), trials=1)
    assert done.told[0].outcome.verdict is Verdict.OK
    assert done.told[0].outcome.attempts == ATTEMPTS + 1


# The finals.


def test_what_is_surely_the_best_is_measured_again_twice(run: Runs) -> None:
    finals = [job.candidate for job in run(finals=2).runner.jobs if job.fresh]
    assert finals == [Candidate(depth=2, seq_len=128, micro_batch=8)] * 2


def times(share: float, found: Result, conditions: Conditions = QUIET) -> Result:
    """`found`, with steps that took that share of its time."""
    return ok(share * found.reported.step_s[0], found.reported.peaks.device_bytes, conditions)


def test_the_fastest_of_the_search_has_a_final_however_sure_it_is_of_another(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Finals, "_is_sure", lambda of, leader: True)
    lucky, best = (Candidate(depth=2, seq_len=64, micro_batch=b) for b in (1, 8))

    def once(job: Job) -> Result:
        quick = 0.55 if job.candidate == lucky and not job.fresh else 1.0
        return times(quick, saturating(job), BUSY)

    done = run(once, replace(SPACE, candidates=(lucky, best)), sampler="grid", finals=2)
    assert [job.candidate for job in done.runner.jobs if job.fresh] == [best, lucky, best]
    assert done.choice.record.candidate == best


def test_finals_whose_speeds_differ_are_repeated_also_in_a_resumed_study(tmp_path: Path) -> None:
    among = replace(SPACE, candidates=SPACE.candidates[:1])
    slower = iter((1.0, 1.0, 0.4, 1.0))

    def answer(job: Job) -> Result:
        return times(next(slower), saturating(job))

    with pytest.raises(Killed):
        Run(tmp_path, killing(3, answer), among, sampler="grid")
    choice = Run(tmp_path, answer, among, sampler="grid").choice
    assert choice.confirmed
    assert next(slower, None) is None


def test_a_winner_that_finals_did_not_confirm_comes_first_in_a_resumed_study(
    tmp_path: Path,
) -> None:
    among = replace(SPACE, candidates=SPACE.candidates[:3])
    unsure = among.candidates[0]
    # Its one final is as slow as others' searches.
    slow = killing(4, lambda job: times(1.25 if job.fresh else 1.0, faster(unsure)(job)))
    with pytest.raises(Killed):
        Run(tmp_path, slow, among, sampler="grid", finals=3)
    resumed = Run(tmp_path, faster(unsure), among, sampler="grid", finals=3)
    finals = [job.candidate for job in resumed.runner.jobs if job.fresh]
    assert finals[:2] == [unsure, unsure]


def faster(one: Candidate) -> Callable[[Job], Result]:
    """A machine on which `one` is faster than all others, by their FLOPs."""
    return lambda job: times(0.8 if job.candidate == one else 1.0, equal(job))


def equal(job: Job) -> Result:
    """A machine on which all of one length and depth are as fast, and fit."""
    c = job.candidate
    return ok(1e-3 * c.depth**3 * c.seq_len**0.5 * c.tokens, 1)


def test_what_may_be_the_best_is_measured_again_in_turn_until_the_rounds_end(run: Runs) -> None:
    jobs = run(equal, sampler="grid", finals=2).runner.jobs
    finals = [job.candidate for job in jobs if job.fresh]
    assert len(set(finals[:2])) == len(set(finals[2:4])) == 2
    assert max(finals.count(c) for c in finals) == MOST_ROUNDS


def test_the_search_has_its_turn_before_the_last_rounds_of_what_cannot_be_told_apart(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    finals: list[int] = []
    turn = Search.turn

    def counting(of: Search) -> Generator[NextWork, None, int]:
        finals.append(len(of._ledger.finals))
        return turn(of)

    monkeypatch.setattr(Search, "turn", counting)
    run(equal, sampler="grid", finals=2)
    before, between, *_, after = finals
    assert before == 0
    assert FIRST_ROUNDS <= between <= 2 * FIRST_ROUNDS < MOST_ROUNDS <= after


def test_where_all_that_was_measured_whole_fails_its_finals_others_are(run: Runs) -> None:
    lost: set[Candidate] = set()

    def early(job: Job) -> Result:
        result = saturating(job)
        if job.fresh and len(lost | {job.candidate}) <= 2:
            lost.add(job.candidate)
        if job.candidate in lost and job.fresh:
            return Result(verdict=Verdict.OOM)
        if job.needed_step_s is not None and result.report is not None:
            report = replace(result.report, stopped_early=True)
            return replace(result, verdict=Verdict.PRUNED, report=report)
        return result

    done = run(early, sampler="grid")
    assert sum(r.outcome.verdict == Verdict.OK and r.purpose == "search" for r in done.told) == 1
    choice = done.choice
    assert choice.confirmed
    assert choice.record.candidate not in lost
    assert len(lost) == 2


def test_the_search_goes_on_where_finals_leave_time(run: Runs) -> None:
    """Everything that was measured fails its finals until nothing is left."""

    def never(job: Job) -> Result:
        return Result(verdict=Verdict.OVER_CEILING) if job.fresh else saturating(job)

    done = run(never, sampler="frontier")
    searched = {r.candidate for r in done.told if r.purpose == "search"}
    assert len(searched) > 10
    assert done.study.ledger.choice() is None


def test_what_finals_do_not_need_is_left_to_a_search_that_found_nothing(run: Runs) -> None:
    """Of four builds the last one fits, and each probe takes a fifth of the budget."""
    now = VirtualTime()
    tried: list[Build] = []

    def slow(job: Job) -> Result:
        now.advance(20.0)
        tried.append(job.candidate.build)
        return Result(verdict=Verdict.OOM) if len(set(tried)) < 4 else saturating(job)

    alike = tuple(replace(c, attention="eager") for c in SPACE.candidates)
    axes = SPACE.axes | {"attention": ("auto", "eager")}
    among = replace(SPACE, axes=axes, candidates=(*SPACE.candidates, *alike))
    done = run(slow, among, now=now, budget_s=100.0, sampler="frontier")
    assert done.study.ledger.choice() is not None


def test_what_finals_that_failed_do_not_need_is_left_to_the_search(run: Runs) -> None:
    """The first of ten builds fits until its final. Then the eighth fits, in time that would have
    been kept for finals."""
    now = VirtualTime()
    tried: list[Candidate] = []

    def slow(job: Job) -> Result:
        now.advance(10.0)
        if job.candidate not in tried:
            tried.append(job.candidate)
        place = tried.index(job.candidate)
        fits = place > 6 or (place == 0 and not job.fresh)
        return saturating(job) if fits else Result(verdict=Verdict.OOM)

    kinds = ("auto", "sdpa", "eager", "flash_attention_2", "flex_attention")
    alike = tuple(
        replace(SPACE.candidates[0], attention=kind, loss=loss)
        for kind in kinds
        for loss in ("whole", "chunked")
    )
    axes = SPACE.axes | {"attention": kinds, "loss": ("whole", "chunked")}
    among = replace(SPACE, axes=axes, candidates=alike)
    done = run(slow, among, now=now, budget_s=100.0, sampler="grid")
    assert done.study.ledger.choice() is not None


def test_the_kernels_that_were_seen_and_what_ranks_run_on_are_kept(run: Runs) -> None:
    seen = {"torch": "2.13.0", "float32_matmul_precision": "high"}

    def answer(job: Job) -> Result:
        found = saturating(job)
        report = replace(found.reported, attention="flash_attention")
        return replace(found, report=report, versions=seen)

    done = run(answer, trials=1)
    assert [r.measured.kernels for r in done.told] == ["flash_attention"] * len(done.told)
    assert rank_versions(done.told) == seen


def test_a_probe_is_taken_to_cost_what_its_quickest_attempt_did(run: Runs) -> None:
    now = VirtualTime()
    took_s = iter([10.0])

    def beside(job: Job) -> Result:
        this_s = next(took_s, 1.0)
        now.advance(this_s)
        return ok(this_s / 9, 1, QUIET if this_s == 1.0 else BUSY)

    done = run(beside, now=now, budget_s=600.0, trials=1)
    outcome = done.told[0].outcome
    assert outcome.attempts == 2
    assert outcome.warmup_s + outcome.timed_s == pytest.approx(11.0)
    assert outcome.least_s == pytest.approx(1.0)
    assert done.study._pace.probe_s(done.told[0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("spread", "early"), [(0.0, False), (0.4, True)])
def test_finals_end_where_noise_hides_the_best(run: Runs, spread: float, early: bool) -> None:
    draw = random.Random(0).gauss

    def noisy(job: Job) -> Result:
        c = job.candidate
        return ok(1e-3 * c.depth**3 * c.tokens * math.exp(draw(0.0, spread)), c.tokens * MIB)

    done = run(noisy, sampler="frontier", finals=3)
    notes = [
        note for note in done.listener.notes if note.startswith("finals end: repeated rounds")
    ]
    assert bool(notes) == early
    assert (len(done.study.ledger.finals) < MOST_ROUNDS) == early


@pytest.mark.parametrize(
    "after", [12, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 25))]
)
def test_finals_go_on_where_they_were_interrupted(tmp_path: Path, after: int) -> None:
    among = replace(SPACE, candidates=SPACE.candidates[:2])
    how: dict[str, Any] = {"sampler": "grid", "finals": 2}
    with pytest.raises(Killed):
        Run(tmp_path, killing(after, equal), among, **how)
    resumed = Run(tmp_path, equal, among, **how)
    whole = Run(tmp_path / "whole", equal, among, **how)
    assert len(resumed.study.ledger.finals) == len(whole.study.ledger.finals) > 2 * FIRST_ROUNDS


def test_repeats_of_one_candidate_take_a_twentieth_of_the_budget_at_most(run: Runs) -> None:
    now = VirtualTime()

    def always(job: Job) -> Result:
        now.advance(1.0)
        return ok(0.1, 1, BUSY)

    few = run(always, now=now, budget_s=45.0, trials=1)
    assert few.told[0].outcome.attempts == 2


def test_models_are_traced_before_any_probe(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        ScriptedRunner, "trace", lambda runner, space, limit_s, deadline: seen.append("trace")
    )

    def answer(job: Job) -> Result:
        seen.append("probe")
        return saturating(job)

    run(answer, trials=2)
    assert seen[:2] == ["trace", "probe"]
    assert seen.count("trace") == 1


def test_a_trace_leaves_time_for_the_end(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(ScriptedRunner, "trace", lambda runner, space, *until: asked.append(until))
    now = VirtualTime()
    run(saturating, now=now, budget_s=8.0, trials=1)
    assert asked == [(TRACE_S, 8.0 - CLOSING_S)]


def test_a_final_that_runs_out_makes_room_for_the_next_best(run: Runs) -> None:
    best = Candidate(depth=2, seq_len=128, micro_batch=8)

    def answer(job: Job) -> Result:
        if job.fresh and job.candidate == best:
            return Result(verdict=Verdict.OOM, reason="not in a fresh group")
        return saturating(job)

    jobs = run(answer, objective="tokens_per_s").runner.jobs
    finals = [job.candidate for job in jobs if job.fresh]
    assert finals[0] == best
    assert len(set(finals)) == 2


def test_finals_run_the_whole_schedule_and_the_search_a_part_of_it(run: Runs) -> None:
    among = replace(
        SPACE, workload=replace(SPACE.workload, global_batch=GlobalBatch(64, "samples"))
    )
    jobs = run(among=among, trials=4).runner.jobs
    for job in jobs:
        assert job.grad_accum == 64 // job.candidate.micro_batch
        assert job.micro_steps == (job.grad_accum if job.fresh else 2)


# What is kept.


def test_verdicts_have_their_states_and_constraints_in_optuna(run: Runs) -> None:
    answers = {
        Candidate(depth=2, seq_len=64, micro_batch=1): Result(
            verdict=Verdict.CRASHED, reason="broke"
        ),
        Candidate(depth=2, seq_len=64, micro_batch=2): Result(verdict=Verdict.HUNG, reason="hung"),
        Candidate(depth=4, seq_len=128, micro_batch=8): Result(
            verdict=Verdict.OOM, reason="ran out"
        ),
    }
    done = run(lambda job: answers.get(job.candidate) or saturating(job))
    expected = {
        Verdict.OK: TrialState.COMPLETE,
        Verdict.OOM: TrialState.PRUNED,
        Verdict.CRASHED: TrialState.FAIL,
        Verdict.HUNG: TrialState.FAIL,
    }
    trials = {Candidate(**t.params): t for t in done.journal.optuna_study.get_trials()}
    for candidate, verdict in done.verdicts().items():
        assert trials[candidate].state == expected[verdict]
        feasible = max(trials[candidate].constraints.values()) <= 0
        assert feasible == (verdict is Verdict.OK)


def test_trials_csv_has_a_row_per_trial_and_final(run: Runs) -> None:
    def answer(job: Job) -> Result:
        return Result(verdict=Verdict.OOM) if job.candidate.micro_batch == 4 else saturating(job)

    done = run(answer)
    table = pd.read_csv(done.folder / "trials.csv")
    assert len(table) == len(done.told) + len(done.study.ledger.settled)
    trials = done.journal.optuna_study.get_trials()
    assert len(trials) == (table["kind"] == "search").sum() - len(done.study.ledger.settled)
    assert set(table["verdict"]) == {"ok", "oom", "skipped"}
    assert list(table["kind"].unique()) == ["search", "final"]


@pytest.mark.parametrize(
    ("probes", "part"), [(3, "search"), (4, "finals"), (5, "finals"), (99, None)]
)
def test_a_stop_keeps_what_was_measured_and_says_its_part(
    run: Runs, probes: int, part: str | None
) -> None:
    done = run(killing(probes, error=StopRequestedError()), trials=4)
    assert done.study.stopped_in == part
    assert ("stopped by the user" in done.listener.notes) == (len(done.told) == probes)


def test_the_result_is_published_at_every_new_incumbent(run: Runs) -> None:
    done = run(trials=4)
    values = [r.outcome.measurement.model_flops_per_s for r in done.told[:4]
              if r.outcome.measurement is not None]  # fmt: skip
    rises = sum(value > max(values[:i], default=0.0) for i, value in enumerate(values))
    assert len(done.published) == rises >= 1


# The rule.


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_rule_keeps_its_promised_floors(kind: str) -> None:
    rule = rule_for(kind, Options.of(budget_s=3600))
    assert rule.warmup_steps >= 3
    assert rule.timed_steps >= 5
    assert rule.timed_limit_s == 15
    assert rule.half_width == {"cpu": 0.02, "cuda": 0.01}[kind]


@pytest.mark.parametrize(
    ("kind", "budget_s", "sustain_s", "final_s"),
    [("cuda", 1800, 3, 10), ("cuda", 600, 3, 10), ("cuda", 60, 0.3, 1), ("cpu", 1800, 0, 0)],
)
def test_gpus_are_warm_before_they_are_timed_and_finals_last(
    kind: str, budget_s: float, sustain_s: float, final_s: float
) -> None:
    options = Options.of(budget_s=budget_s)
    rule, final = rule_for(kind, options), rule_for(kind, options, final=True)
    assert (rule.sustain_s, rule.timed_least_s) == pytest.approx((sustain_s, 0))
    assert (final.sustain_s, final.timed_least_s) == pytest.approx((sustain_s, final_s))


def test_a_short_budget_gives_no_probe_more_than_a_fiftieth_of_it() -> None:
    assert rule_for("cpu", Options.of(budget_s=120)).timed_limit_s == pytest.approx(2.4)


def test_an_emulated_gpu_is_timed_for_seconds_in_any_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(emulated.VARIABLE, "cards")
    day = Options.of(budget_s=86400)
    assert rule_for("cuda", day).timed_limit_s == EMULATED_S < rule_for("cpu", day).timed_limit_s
