"""What the default sampler proposes, on measurements that follow a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from autotune.result.earlier import points
from autotune.result.folder.ask import Ask, Costs
from autotune.result.folder.sampler import Adapter
from autotune.space.arrays import Array
from autotune.space.candidate import Candidate
from autotune.space.outcome import Outcome, Record, Verdict, judge
from autotune.space.space import Space
from autotune.study.predict.belief import normal_cdf
from autotune.study.predict.memory import device_memory
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.frontier import CAUTION, ENOUGH, UNLIKELY, Frontier, Proposal
from autotune.study.samplers.open_candidates import OpenCandidates
from tests.support.records import LIMITS, MIB, record, space

SPACE = space(depth=(2, 4, 6), micro_batch=(1, 2, 4, 8, 16, 32))


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


class Searched:
    """A search over `among` by what follows from measurements by the formulas."""

    def __init__(self, among: Space, probes: int = 0) -> None:
        self.among = among
        self.predictor = Predictor(among, "cpu")
        self.open = OpenCandidates(among)
        self.told: list[Record] = []
        self.frontier = Frontier(among, self.predictor, "flops")
        for _ in range(min(probes, len(among.candidates))):
            self.tell(measured(among.candidates[self.best().place], among))

    def tell(self, found: Record) -> None:
        self.open.close(found.candidate)
        self.predictor.observe(found.candidate, found.outcome)
        self.told.append(found)

    def best(self, **known: Any) -> Proposal:
        fitting = [r.candidate for r in self.told if r.outcome.verdict == Verdict.OK]
        asked: dict[str, Any] = {"allowed": self.open.places(), "fitting": tuple(fitting)}
        return self.frontier.best(Ask(**asked | known))


def flops(found: Record) -> float:
    return found.outcome.measurement.model_flops_per_s if found.outcome.measurement else 0.0


def limited(limit_mib: int) -> Space:
    return replace(SPACE, limits=replace(LIMITS, capacity_bytes=int(limit_mib * MIB / 0.8)))


@pytest.mark.parametrize("limit_mib", [500, 800, 1100, 4000])
def test_it_is_near_the_optimum_after_eight_probes(limit_mib: int) -> None:
    among = limited(limit_mib)
    fitting = [measured(c, among) for c in among.candidates if peak_mib(c) <= limit_mib]
    best = max(flops(r) for r in fitting)
    told = Searched(among, 8).told
    assert max(flops(r) for r in told if r.outcome.verdict == Verdict.OK) >= 0.95 * best


def test_few_probes_are_lost_to_memory() -> None:
    lost = [r for mib in (500, 800, 1100) for r in Searched(limited(mib), 12).told
            if r.outcome.verdict != Verdict.OK]  # fmt: skip
    assert len(lost) <= 4


def test_predictions_close_in_on_what_was_measured() -> None:
    among = limited(800)
    untold, told = Searched(among, 0), Searched(among, 10)

    def error(searched: Searched) -> float:
        return float(np.median([
            abs(searched.predictor.peak(c).bytes / MIB / peak_mib(c) - 1)
            for c in among.candidates
        ]))  # fmt: skip

    assert error(told) < min(0.03, error(untold))


def test_a_trace_moves_the_base_of_every_engine_alike() -> None:
    deepspeed = replace(SPACE, workload=replace(SPACE.workload, engine="deepspeed"))
    plain, traced, other, other_traced = (
        device_memory(points(among, ()), "cpu") for among in (SPACE, SPACE, deepspeed, deepspeed)
    )
    unknown = np.full(len(SPACE.candidates), np.nan)
    for model in (traced, other_traced):
        model.trace(unknown, 50.0 * MIB)
    assert traced.predict(0).bytes - plain.predict(0).bytes == 50 * MIB
    assert other_traced.predict(0).bytes - other.predict(0).bytes == 50 * MIB
    assert other.predict(0).bytes > plain.predict(0).bytes


def test_an_interval_holds_most_of_what_is_measured_later() -> None:
    among = limited(4000)
    predictor = Searched(among, 6).predictor
    held = [
        predictor.peak(c).low_bytes <= peak_mib(c) * MIB <= predictor.peak(c).high_bytes
        for c in among.candidates
    ]  # fmt: skip
    assert sum(held) >= 0.8 * len(held)


def test_out_of_memory_raises_what_is_believed_of_the_candidate() -> None:
    predictor = Predictor(SPACE, "cpu")
    small = SPACE.candidates[0]
    before = predictor.peak(small).bytes
    predictor.observe(small, Outcome(verdict=Verdict.OOM))
    assert predictor.peak(small).bytes > max(before, 0.8 * LIMITS.capacity_bytes)


def test_a_live_build_is_preferred_where_a_start_is_dear() -> None:
    searched = Searched(SPACE, 2)
    live = searched.told[0].candidate.build
    best = searched.best(costs=Costs(live_build=live, start_s=lambda build: 1e6))
    assert SPACE.candidates[best.place].build == live


def test_what_runs_is_not_proposed_once_more_in_other_words() -> None:
    """A pending neighbour makes its surroundings surer, so that others come first."""
    searched = Searched(SPACE, 3)
    everything = np.arange(len(SPACE.candidates))
    first = searched.best(allowed=everything).place
    pending = (SPACE.candidates[first],)
    assert searched.best(allowed=everything, pending=pending).place != first


def test_a_space_of_one_candidate_is_probed_and_no_more() -> None:
    one = replace(SPACE, candidates=SPACE.candidates[:1])
    assert [r.candidate for r in Searched(one, 3).told] == [SPACE.candidates[0]]


def test_a_space_in_which_only_micro_batch_1_fits_finds_it() -> None:
    smallest = min(peak_mib(c) for c in SPACE.candidates)
    told = Searched(limited(smallest), 12).told
    assert any(r.outcome.verdict == Verdict.OK for r in told)


@pytest.mark.parametrize("limit_mib", [500, 800, 1100])
def test_what_may_not_fit_comes_last_and_only_for_the_daring(limit_mib: int) -> None:
    searched = Searched(limited(limit_mib), 3)
    chances, places = searched.predictor.chance(), searched.open.places()
    assert chances[searched.best(least_chance=0.0).place] >= CAUTION
    doubtful = places[chances[places] < UNLIKELY]
    daring = searched.best(allowed=doubtful, least_chance=0.0)
    assert daring.gain >= ENOUGH
    chance = float(chances[daring.place])
    assert searched.best(allowed=doubtful, least_chance=chance) == daring
    above = searched.best(allowed=doubtful, least_chance=float(np.nextafter(chance, 1.0)))
    assert above.gain < ENOUGH or (above.place != daring.place and chances[above.place] > chance)
    assert searched.best(allowed=doubtful, least_chance=CAUTION).gain < ENOUGH


def test_where_nothing_is_likely_the_likeliest_comes_first() -> None:
    searched = Searched(limited(800), 3)
    chances, places = searched.predictor.chance(), searched.open.places()
    doubtful = places[(chances[places] < CAUTION) & (chances[places] >= UNLIKELY)]
    best = searched.best(allowed=doubtful, least_chance=CAUTION)
    assert chances[best.place] == chances[doubtful].max()


def test_while_nothing_fits_it_goes_on_however_small_the_chance() -> None:
    searched = Searched(limited(1))
    for candidate in SPACE.candidates[:2]:
        assert searched.best().gain >= ENOUGH
        searched.predictor.observe(candidate, Outcome(verdict=Verdict.OOM))


def test_the_cumulative_normal_is_that_of_the_error_function() -> None:
    from math import erf, sqrt

    z: Array = np.linspace(-6, 6, 101)
    assert normal_cdf(z) == pytest.approx([(1 + erf(x / sqrt(2))) / 2 for x in z], abs=1e-6)


# As a sampler of Optuna's.


class Asking(Searched):
    """The same, by way of an Optuna study."""

    def __init__(self, among: Space = SPACE) -> None:
        super().__init__(among)
        self.adapter = Adapter(among, self.frontier)
        self.optuna_study = optuna.create_study(sampler=self.adapter, direction="maximize")

    def ask(self, *pending: Candidate) -> Candidate:
        asked = self.adapter.ask(
            self.optuna_study, Ask(allowed=self.open.places(), pending=pending)
        )
        self.open.close(asked.candidate)
        return asked.candidate

    def run(self, probes: int) -> list[Candidate]:
        asked: list[Candidate] = []
        for _ in range(probes):
            asked.append(self.ask())
            self.tell(measured(asked[-1], self.among))
        return asked


def test_the_same_trials_lead_to_the_same_proposals() -> None:
    assert Asking().run(6) == Asking().run(6)


def test_parallel_asks_are_of_different_candidates() -> None:
    asking = Asking()
    asking.run(3)
    asked: list[Candidate] = []
    for _ in range(4):
        asked.append(asking.ask(*asked))
    assert len(set(asked)) == 4


def test_an_axis_of_one_value_is_no_trial_of_another_candidate() -> None:
    """Optuna sets such a parameter before it asks the sampler for the others."""
    asking = Asking(space(depth=(4,), micro_batch=(1, 2)))
    assert len({asking.ask() for _ in range(3)}) == 3


def test_it_says_when_nothing_is_worth_a_probe_any_more() -> None:
    searched = Searched(SPACE)

    def why_stop() -> str | None:
        fitting = tuple(r.candidate for r in searched.told if r.outcome.verdict == Verdict.OK)
        return searched.frontier.why_stop(Ask(allowed=searched.open.places(), fitting=fitting))

    assert why_stop() is None
    while searched.open.has() and why_stop() is None:
        searched.tell(measured(SPACE.candidates[searched.best().place], SPACE))
    assert len(searched.told) < len(SPACE.candidates) / 2
    assert f"{ENOUGH:.0%}" in (why_stop() or "")
