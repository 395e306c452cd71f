"""When warm-up and timing stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.wire.stopping import Phase, Series, Steps
from tests.support.defaults import RULE


def series(steps: list[float]) -> Series:
    """Steps that ran whole."""
    return Series(steps, sum(steps))


@pytest.mark.parametrize(
    ("steps", "over"),
    [
        ([1.0, 1.0], False),
        ([9.0, 1.0, 1.0], True),
        ([4.0, 2.0, 1.0], False),
        ([4.0, 2.0, 1.0, 1.05], True),
        ([5.0, 4.0, 3.0], True),
    ],
    ids=["too few", "steady", "still falling", "steady at last", "time is up"],
)
def test_warm_up_ends_when_steps_are_steady_or_time_is_up(steps: list[float], over: bool) -> None:
    assert RULE.warmed(series(steps)) is over


@pytest.mark.parametrize(
    ("steps", "over"),
    [
        ([1.0] * 4, False),
        ([1.0] * 5, True),
        ([1.0, 1.2] * 3, False),
        ([2.0, 2.4] * 3, True),
    ],
    ids=["too few", "known", "not known", "time is up"],
)
def test_timing_ends_with_a_known_median_or_its_time(steps: list[float], over: bool) -> None:
    assert RULE.settled(series(steps)) is over


def test_the_time_limit_counts_what_ran_and_not_what_it_stands_for() -> None:
    scaled = Series([1.0, 1.2] * 6, wall_s=0.1)  # a hundredth of each step ran
    assert not RULE.settled(scaled)


@pytest.mark.parametrize(
    ("others", "steps", "over"),
    [(0.3, 12, True), (0.3, 11, False), (0.3, 4, False), (0.2, 12, False)],
    ids=["disturbed", "not for long", "too few", "calm"],
)
def test_a_timing_that_is_disturbed_ends_early(others: float, steps: int, over: bool) -> None:
    rule = replace(RULE, calm=0.2)
    made = Series([1.0, 1.2] * (steps // 2) + [1.0] * (steps % 2), wall_s=steps * 2.5 / 12)
    assert rule.settled(made, others) is over
    assert not RULE.settled(made, others) or steps < 5  # it need not be calm
    assert not replace(rule, energy_s=3.0).settled(made, others)  # counters would tell nothing


@pytest.mark.parametrize(
    ("needed_step_s", "warmup", "timed", "hopeless"),
    [
        (None, [9.0] * 3, [9.0] * 9, False),
        (1.0, [9.0] * 2, [], False),
        (1.0, [9.0, 1.3, 1.3], [], True),
        (1.0, [9.0, 1.2, 1.2], [], False),
        (1.0, [1.0] * 3, [1.01] * 8, True),
        (1.0, [1.0] * 3, [0.9, 0.95] + [1.1] * 6, False),
    ],
    ids=["no incumbent", "too few", "far too slow", "a little too slow", "its interval is beyond",
         "its interval reaches it"],
)  # fmt: skip
def test_what_cannot_reach_the_incumbent_is_hopeless(
    needed_step_s: float | None, warmup: list[float], timed: list[float], hopeless: bool
) -> None:
    assert RULE.hopeless(needed_step_s, series(warmup), series(timed)) is hopeless


def walked(needed_step_s: float | None, warmup: list[float], timed: list[float]) -> Steps:
    """Steps as a rank makes them, for as long as they are wanted."""
    steps = Steps(RULE, needed_step_s)
    for phase, made in ((Phase.WARMUP, warmup), (Phase.TIMED, timed)):
        for step_s in made:
            if steps.wanted(phase):
                steps.add(phase, step_s, step_s)
    return steps


def test_no_step_is_made_that_is_not_wanted() -> None:
    steps = walked(None, [9.0, 1.0, 1.0, 7.0], [1.0] * 30)
    assert steps.warmup.step_s == [9.0, 1.0, 1.0]
    assert len(steps.timed.step_s) == RULE.timed_steps
    assert steps.step_s == steps.timed.step_s


def test_steps_that_cannot_win_end_both_phases() -> None:
    steps = walked(0.5, [9.0, 1.0, 1.0], [1.0] * 30)
    assert steps.stopped_early
    assert steps.timed.step_s == []
    assert steps.step_s == [1.0, 1.0]  # the first one of a warm-up says nothing
