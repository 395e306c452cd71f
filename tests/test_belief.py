"""A belief against the textbook formula, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.belief import Belief, Term

RNG = np.random.default_rng(0)
SIZE = 12
TERMS = [
    Term(np.full(SIZE, 1.5)),
    Term(RNG.uniform(0.1, 0.5, SIZE), group=np.arange(SIZE) % 3),
    Term(np.full(SIZE, 0.4), group=np.arange(SIZE) % 2, position=RNG.uniform(0, 3, SIZE)),
]
PRIOR = RNG.normal(size=SIZE)
SEEN = [(3, 0.2, 0.01), (7, -1.0, 0.04), (3, 0.3, 0.01), (0, 2.0, 0.25)]


def belief() -> Belief:
    found = Belief(PRIOR, TERMS)
    for index, value, noise_variance in SEEN:
        found.observe(index, value, noise_variance)
    return found


def covariance() -> np.ndarray:
    return np.array([sum(term.covariance(i) for term in TERMS) for i in range(SIZE)])


def test_one_measurement_at_a_time_gives_the_posterior_of_all_together() -> None:
    prior = covariance()
    at = [index for index, _, _ in SEEN]
    noisy = prior[np.ix_(at, at)] + np.diag([noise for _, _, noise in SEEN])
    gain = np.linalg.solve(noisy, prior[at]).T
    mean = PRIOR + gain @ (np.array([value for _, value, _ in SEEN]) - PRIOR[at])
    variance = np.diag(prior - gain @ prior[at])
    assert belief().mean == pytest.approx(mean)
    assert belief().variance == pytest.approx(variance)


def test_a_covariance_is_symmetric_and_positive_definite() -> None:
    prior = covariance()
    assert prior == pytest.approx(prior.T)
    assert np.linalg.eigvalsh(prior).min() > -1e-9


def test_groups_that_share_nothing_learn_nothing_from_each_other() -> None:
    apart = Belief(np.zeros(4), [Term(np.ones(4), group=np.array([0, 0, 1, 1]))])
    apart.observe(0, 5.0, 0.01)
    assert apart.mean[1] > 4.9
    assert list(apart.mean[2:]) == [0.0, 0.0]
    assert list(apart.variance[2:]) == [1.0, 1.0]


def test_what_is_supposed_makes_surer_and_changes_no_mean_nor_the_original() -> None:
    before = belief()
    mean, variance = before.mean.copy(), before.variance.copy()
    supposed = before.supposing(5)
    assert supposed.mean == pytest.approx(mean)
    assert supposed.variance[5] < 1e-3 * variance[5]
    assert (supposed.variance <= variance + 1e-12).all()
    assert before.mean == pytest.approx(mean)
    assert before.variance == pytest.approx(variance)


def test_variance_is_never_negative_however_often_one_candidate_is_measured() -> None:
    found = belief()
    for _ in range(200):
        found.observe(2, 0.0, 1e-12)
    assert (found.variance >= 0).all()
    assert np.isfinite(found.mean).all()
