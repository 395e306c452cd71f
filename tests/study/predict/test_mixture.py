"""Draws of a prior, weighed by measurements."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.study.predict.belief import Term
from autotune.study.predict.mixture import Mixture

SLOPES = np.linspace(-1.0, 1.0, 201)
PLACES = np.arange(5.0)


def lines(own: float = 0.01) -> Mixture:
    """Lines of many slopes, at a level that nobody knows."""
    draws = SLOPES[:, None] * PLACES
    return Mixture(draws, [Term(2.0 * np.ones(5))], own * np.ones(5))


def test_measurements_choose_the_draws_that_agree() -> None:
    mixture = lines()
    for place in (0, 2):
        mixture.observe(place, 3.0 + 0.5 * place, 1e-6)
    belief = mixture.belief()
    assert belief.mean == pytest.approx(3.0 + 0.5 * PLACES, abs=0.05)
    assert belief.deviation[4] < 0.2
    mean, covariance = mixture.joint([1, 4])
    assert mean == pytest.approx(belief.mean[[1, 4]])
    assert np.sqrt(np.diag(covariance)) == pytest.approx(belief.deviation[[1, 4]])
    difference = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert mixture.apart(1)[4] ** 2 == pytest.approx(difference)


def test_one_that_no_draw_explains_counts_little_for_the_others() -> None:
    mixture = lines()
    for place in (0, 1, 2, 4):
        mixture.observe(place, 0.2 * place + (3.0 if place == 2 else 0.0), 1e-6)
    mean = mixture.belief().mean
    assert mean[2] == pytest.approx(3.4, abs=0.05)  # as it was measured
    assert mean[3] == pytest.approx(0.6, abs=0.2)


def test_candidates_that_are_measured_as_unlike_make_all_less_sure() -> None:
    alike, unlike = lines(), lines()
    for mixture, off in ((alike, 0.0), (unlike, 0.5)):
        for place in (0, 1, 2, 3):
            mixture.observe(place, off * (-1) ** place, 1e-6)
    assert unlike.belief().deviation[4] > 2 * alike.belief().deviation[4]


def test_a_bound_leaves_some_chance_to_draws_on_its_other_side() -> None:
    mixture = lines()
    before = mixture.below(1.0, 0.1)[4]
    mixture.bound(4, 1.0, above=True, edge=0.1, wrong=0.03)
    assert before > 0.5 > mixture.below(1.0, 0.1)[4] > 0.03
    for place in (0, 4):
        mixture.observe(place, 0.0, 1e-6)
    assert mixture.below(1.0, 0.1)[4] > 0.9


def test_pending_candidates_are_known_and_change_no_mean() -> None:
    mixture = lines()
    mixture.observe(0, 1.0, 1e-6)
    known, supposed = mixture.belief(), mixture.belief(pending=[4])
    assert (supposed.mean == known.mean).all()
    assert supposed.deviation[4] < 1e-3 < known.deviation[4]
    assert supposed.deviation[3] < known.deviation[3]


def test_what_is_forgotten_says_nothing() -> None:
    mixture = lines()
    mixture.observe(3, 5.0, 1e-6)
    mixture.forget(3)
    mixture.observe(3, 1.0, 1e-6)
    assert mixture.belief().mean[3] == pytest.approx(1.0, abs=0.01)
