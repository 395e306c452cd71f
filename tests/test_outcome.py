"""What is kept of a probe's steps."""

from __future__ import annotations

import pytest

from autotune.space.candidate import Candidate
from autotune.space.outcome import MOST_SLICES, in_slices, measurement
from autotune.wire.reports import Peaks, Ran
from autotune.wire.stopping import Interval
from tests.support.records import QUIET, WORKLOAD


def test_few_steps_are_kept_one_by_one_and_many_in_even_slices() -> None:
    assert in_slices([3.0, 1.0, 2.0]) == (3.0, 1.0, 2.0)
    assert in_slices([1.0, 1.0, 9.0] * MOST_SLICES) == (1.0,) * MOST_SLICES
    rising = in_slices([float(n) for n in range(1000)])
    assert len(rising) == MOST_SLICES
    assert list(rising) == sorted(rising)


def test_slices_are_scaled_as_the_step_is_and_rounded() -> None:
    assert in_slices([1 / 3, 2 / 3], scale=0.5) == (0.16667, 0.33333)


@pytest.mark.parametrize(
    ("steps", "count", "numbers"), [(3, 3, [1, 2, 3]), (40, 4, [10, 20, 30, 40]), (17, 16, None)]
)
def test_a_step_time_is_that_of_the_last_step_of_its_slice(
    steps: int, count: int, numbers: list[int] | None
) -> None:
    found = measurement(
        Candidate(depth=2, seq_len=64, micro_batch=1), WORKLOAD, Interval(1.0, 1.0, 1.0, steps),
        peaks=Peaks.same(1), disturbed_share=0.0, conditions=QUIET, slices_s=(1.0,) * count,
    )  # fmt: skip
    assert len(found.step_times) == count
    assert max(found.step_times) == steps
    assert numbers is None or list(found.step_times) == numbers


@pytest.mark.parametrize(("frozen", "flops"), [(0, 600.0), (50, 800.0)])
def test_frozen_weights_cost_a_script_two_thirds(frozen: int, flops: float) -> None:
    ran = Ran(
        samples=2.0, tokens=32.0, seq_len=16, micro_steps=1, seen=True, waiting_share=0.0,
        trainable=100, frozen=frozen,
    )  # fmt: skip
    found = measurement(
        Candidate(depth=1, seq_len=16, micro_batch=2), WORKLOAD, Interval(0.5, 0.5, 0.5, 9),
        peaks=Peaks.same(1), disturbed_share=0.0, conditions=QUIET, ran=ran,
    )  # fmt: skip
    assert found.model_flops_per_s == 32.0 / 0.5 * flops
