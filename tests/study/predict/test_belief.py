"""A belief against the textbook formula, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.study.predict.belief import Beliefs, Term, Variant

RNG = np.random.default_rng(0)
SIZE = 12
TERMS = [
    Term(np.full(SIZE, 1.5)),
    Term(RNG.uniform(0.1, 0.5, SIZE), group=np.arange(SIZE) % 3),
    Term(np.full(SIZE, 0.4), group=np.arange(SIZE) % 2, position=RNG.uniform(0, 3, SIZE)),
]
PRIOR = RNG.normal(size=SIZE)
SEEN = [(3, 0.2, 0.01), (7, -1.0, 0.04), (3, 0.3, 0.01), (0, 2.0, 0.25)]


def beliefs(variants: tuple[Variant, ...] = (Variant(),)) -> Beliefs:
    found = Beliefs(PRIOR, TERMS, variants)
    for index, value, noise_variance in SEEN:
        found.observe(index, value, noise_variance)
    return found


def covariance() -> np.ndarray:
    return np.array([sum(term.covariance(i) for term in TERMS) for i in range(SIZE)])


def test_the_posterior_is_the_textbook_one() -> None:
    prior = covariance()
    at = [index for index, _, _ in SEEN]
    noisy = prior[np.ix_(at, at)] + np.diag([noise for _, _, noise in SEEN])
    gain = np.linalg.solve(noisy, prior[at]).T
    mean = PRIOR + gain @ (np.array([value for _, value, _ in SEEN]) - PRIOR[at])
    variance = np.diag(prior - gain @ prior[at])
    found = beliefs().belief()
    assert found.mean == pytest.approx(mean)
    assert found.deviation**2 == pytest.approx(variance)


@pytest.mark.parametrize("pending", [[], [5, 2]])
def test_a_difference_is_as_sure_as_by_the_covariance(pending: list[int]) -> None:
    known = beliefs()
    with_pending = beliefs()
    for index in pending:
        noise_variance = 1e-4 * float(np.diag(covariance())[index])
        with_pending.observe(index, 0.0, noise_variance)
    _, joint = with_pending.joint(range(SIZE))
    variance = np.diag(joint)
    expected = variance + variance[4] - 2 * joint[4]
    assert known.apart(4, pending) ** 2 == pytest.approx(expected, abs=1e-9)


def test_a_covariance_is_symmetric_and_positive_definite() -> None:
    prior = covariance()
    assert prior == pytest.approx(prior.T)
    assert np.linalg.eigvalsh(prior).min() > -1e-9


def test_groups_that_share_nothing_learn_nothing_from_each_other() -> None:
    apart = Beliefs(np.zeros(4), [Term(np.ones(4), group=np.array([0, 0, 1, 1]))], [Variant()])
    apart.observe(0, 5.0, 0.01)
    found = apart.belief()
    assert found.mean[1] > 4.9
    assert list(found.mean[2:]) == [0.0, 0.0]
    assert list(found.deviation[2:]) == [1.0, 1.0]


def test_what_is_pending_makes_surer_and_changes_no_mean() -> None:
    known = beliefs()
    before, supposed = known.belief(), known.belief([5])
    assert supposed.mean == pytest.approx(before.mean)
    assert supposed.deviation[5] < 0.1 * before.deviation[5]
    assert (supposed.deviation <= before.deviation + 1e-9).all()
    assert known.belief().deviation == pytest.approx(before.deviation)


def test_a_candidate_may_be_measured_often_and_almost_without_noise() -> None:
    known = beliefs()
    for _ in range(200):
        known.observe(2, 0.0, 1e-12)
    found = known.belief()
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.deviation).all()
    assert found.mean[2] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_observations_choose_the_scale_that_they_were_made_with(scale: float) -> None:
    made = np.linalg.cholesky(covariance() + 1e-9 * np.eye(SIZE)) @ RNG.normal(size=SIZE)
    known = Beliefs(PRIOR, TERMS, [Variant(1.0), Variant(10.0)])
    for index in range(SIZE):
        known.observe(index, float(PRIOR[index] + scale * made[index]), 1e-4)
    assert known.likely.scale == scale


@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_observations_choose_the_noise_that_they_were_made_with(noise: float) -> None:
    known = Beliefs(np.zeros(1), [Term(np.ones(1))], [Variant(), Variant(noise=10.0)])
    for value in RNG.normal(size=30):
        known.observe(0, 0.5 + noise * 0.1 * float(value), 0.01)
    assert known.likely.noise == noise
