"""What the default sampler proposes, on measurements that follow a formula."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from support.records import LIMITS, MIB, record, space

from autotune.folder.journal import _jsonable
from autotune.outcome import Outcome, Record, Verdict, judge
from autotune.predict.belief import Array, normal_cdf
from autotune.predict.memory import device_memory
from autotune.samplers.adapter import FrontierSampler
from autotune.samplers.frontier import ENOUGH, Costs, Frontier
from autotune.space.space import Candidate, Space

SPACE = space(depth=(2, 4, 6), micro_batch=(1, 2, 4, 8, 16, 32))
NO_COSTS = Costs()


def speed(candidate: Candidate) -> float:
    """Tokens per second: saturating in tokens, cheaper without checkpointing."""
    full = 1.3 if candidate.checkpointing == "full" else 1.0
    return 2e7 / candidate.depth**3 * candidate.tokens / (candidate.tokens + 200) / full


def peak_mib(candidate: Candidate) -> int:
    a_block = 0.005 if candidate.checkpointing == "full" else 0.03
    a_token = 0.05 + a_block * candidate.depth
    return int(330 + 6 * candidate.depth**2 + a_token * candidate.tokens)


def measured(candidate: Candidate, among: Space) -> Record:
    found = record(candidate, tokens_per_s=speed(candidate), peak_mib=peak_mib(candidate))
    assert found.outcome.measurement is not None
    verdict, reason = judge(found.outcome.measurement.peaks, among.limits)
    return replace(found, outcome=replace(found.outcome, verdict=verdict, reason=reason))


def made(among: Space) -> Frontier:
    return Frontier(among, "cpu", "flops", device_memory(among, "cpu"))


def search(among: Space, probes: int) -> tuple[list[Record], Frontier]:
    frontier, told = made(among), []
    is_open = np.ones(len(among.candidates), dtype=bool)
    for _ in range(min(probes, len(among.candidates))):
        index = frontier.propose(np.flatnonzero(is_open), [], NO_COSTS).index
        is_open[index] = False
        told.append(measured(among.candidates[index], among))
        frontier.observe(told[-1].candidate, told[-1].outcome)
    return told, frontier


def flops(found: Record) -> float:
    return found.outcome.measurement.model_flops_per_s if found.outcome.measurement else 0.0


def limited(limit_mib: int) -> Space:
    return replace(SPACE, limits=replace(LIMITS, capacity_bytes=int(limit_mib * MIB / 0.8)))


@pytest.mark.parametrize("limit_mib", [500, 800, 1100, 4000])
def test_it_is_near_the_optimum_after_eight_probes(limit_mib: int) -> None:
    among = limited(limit_mib)
    fitting = [measured(c, among) for c in among.candidates if peak_mib(c) <= limit_mib]
    best = max(flops(r) for r in fitting)
    told, _ = search(among, 8)
    assert max(flops(r) for r in told if r.outcome.verdict == Verdict.OK) >= 0.95 * best


def test_few_probes_are_lost_to_memory() -> None:
    lost = [r for mib in (500, 800, 1100) for r in search(limited(mib), 12)[0]
            if r.outcome.verdict != Verdict.OK]  # fmt: skip
    assert len(lost) <= 4


def test_predictions_close_in_on_what_was_measured() -> None:
    among = limited(800)
    _, untold = search(among, 0)
    _, told = search(among, 10)

    def error(frontier: Frontier) -> float:
        return float(np.median([
            abs(frontier.memory.predict(c).bytes / MIB / peak_mib(c) - 1)
            for c in among.candidates
        ]))  # fmt: skip

    assert error(told) < min(0.03, error(untold))


def test_a_trace_moves_the_base_of_every_engine_alike() -> None:
    plain, traced = device_memory(SPACE, "cpu"), device_memory(SPACE, "cpu")
    deepspeed = replace(SPACE, workload=replace(SPACE.workload, engine="deepspeed"))
    other, other_traced = device_memory(deepspeed, "cpu"), device_memory(deepspeed, "cpu")
    unknown = np.full(len(SPACE.candidates), np.nan)
    for model in (traced, other_traced):
        model.trace(unknown, 50.0 * MIB)
    c = SPACE.candidates[0]
    assert traced.predict(c).bytes - plain.predict(c).bytes == 50 * MIB
    assert other_traced.predict(c).bytes - other.predict(c).bytes == 50 * MIB
    assert other.predict(c).bytes > plain.predict(c).bytes


def test_an_interval_holds_most_of_what_is_measured_later() -> None:
    among = limited(4000)
    _, frontier = search(among, 6)
    held = [
        frontier.memory.predict(c).low_bytes <= peak_mib(c) * MIB
        <= frontier.memory.predict(c).high_bytes
        for c in among.candidates
    ]  # fmt: skip
    assert sum(held) >= 0.8 * len(held)


def test_out_of_memory_raises_what_is_believed_of_the_candidate() -> None:
    frontier = made(SPACE)
    small = SPACE.candidates[0]
    before = frontier.memory.predict(small).bytes
    frontier.observe(small, Outcome(Verdict.OOM))
    assert frontier.memory.predict(small).bytes > max(before, 0.8 * LIMITS.capacity_bytes)


def test_a_live_build_is_preferred_where_a_start_is_dear() -> None:
    told, frontier = search(SPACE, 6)
    live = told[0].candidate.build
    left = np.array([i for i, c in enumerate(SPACE.candidates)
                     if c not in {r.candidate for r in told}])  # fmt: skip
    index = frontier.propose(left, [], Costs(live, start_s=1e6)).index
    assert SPACE.candidates[index].build == live


def test_what_runs_is_not_proposed_once_more_in_other_words() -> None:
    """A pending neighbour makes its surroundings surer, so that others come first."""
    _, frontier = search(SPACE, 3)
    everything = np.arange(len(SPACE.candidates))
    first = frontier.propose(everything, [], NO_COSTS).index
    pending = [SPACE.candidates[first]]
    assert frontier.propose(everything, pending, NO_COSTS).index != first


def test_a_space_of_one_candidate_is_probed_and_no_more() -> None:
    one = replace(SPACE, candidates=SPACE.candidates[:1])
    told, _ = search(one, 3)
    assert [r.candidate for r in told] == [SPACE.candidates[0]]


def test_a_space_in_which_only_micro_batch_1_fits_finds_it() -> None:
    smallest = min(peak_mib(c) for c in SPACE.candidates)
    told, _ = search(limited(smallest), 12)
    assert any(r.outcome.verdict == Verdict.OK for r in told)


def test_while_nothing_fits_it_goes_on_however_small_the_chance() -> None:
    frontier = made(limited(1))
    for index in (0, 1):
        assert frontier.propose(np.arange(len(SPACE.candidates)), [], NO_COSTS).gain >= ENOUGH
        frontier.observe(SPACE.candidates[index], Outcome(Verdict.OOM))


def test_the_cumulative_normal_is_that_of_the_error_function() -> None:
    from math import erf, sqrt

    z: Array = np.linspace(-6, 6, 101)
    assert normal_cdf(z) == pytest.approx([(1 + erf(x / sqrt(2))) / 2 for x in z], abs=1e-6)


# As a sampler of Optuna's.


def run_study(study: optuna.Study, sampler: FrontierSampler, probes: int) -> list[Candidate]:
    asked = []
    for _ in range(probes):
        trial = study.ask(sampler.distributions)
        candidate = Candidate(**trial.params)
        sampler.close(candidate)
        found = measured(candidate, SPACE)
        trial.set_user_attr("outcome", _jsonable(asdict(found.outcome)))
        if found.outcome.verdict == Verdict.OK:
            study.tell(trial, flops(found))
        else:
            study.tell(trial, None, TrialState.PRUNED)
        asked.append(candidate)
    return asked


def fresh() -> tuple[optuna.Study, FrontierSampler]:
    sampler = FrontierSampler(SPACE, "cpu", "flops")
    return optuna.create_study(sampler=sampler, direction="maximize"), sampler


def test_the_same_trials_lead_to_the_same_proposals() -> None:
    assert run_study(*fresh(), 6) == run_study(*fresh(), 6)


def test_a_loaded_study_goes_on_as_it_would_have_gone_on() -> None:
    study, sampler = fresh()
    whole = run_study(study, sampler, 8)
    study, sampler = fresh()
    first = run_study(study, sampler, 4)
    again = FrontierSampler(SPACE, "cpu", "flops")
    for candidate in first:
        again.close(candidate)
    study.sampler = again
    assert first + run_study(study, again, 4) == whole


def test_parallel_asks_are_of_different_candidates() -> None:
    study, sampler = fresh()
    run_study(study, sampler, 3)
    asked = []
    for _ in range(4):
        trial = study.ask(sampler.distributions)
        asked.append(Candidate(**trial.params))
    assert len(set(asked)) == 4


def test_an_axis_of_one_value_is_no_trial_of_another_candidate() -> None:
    """Optuna sets such a parameter before it asks the sampler for the others."""
    narrow = space(depth=(4,), micro_batch=(1, 2))
    sampler = FrontierSampler(narrow, "cpu", "flops")
    study = optuna.create_study(sampler=sampler, direction="maximize")
    asked = [Candidate(**study.ask(sampler.distributions).params) for _ in range(3)]
    assert len(set(asked)) == 3


def test_it_says_when_nothing_is_worth_a_probe_any_more() -> None:
    study, sampler = fresh()
    assert sampler.why_stop(study) is None
    probes = 0
    while sampler.has_open() and sampler.why_stop(study) is None:
        run_study(study, sampler, 1)
        probes += 1
    assert probes < len(SPACE.candidates) / 2
    assert f"{ENOUGH:.0%}" in (sampler.why_stop(study) or "")
