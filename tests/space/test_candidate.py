"""What candidates cover, and what global batches they divide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.candidate import Candidate
from autotune.space.workload import GlobalBatch
from tests.support.records import workload

candidates = st.builds(
    Candidate,
    depth=st.integers(1, 3),
    seq_len=st.sampled_from([64, 128]),
    micro_batch=st.integers(1, 3),
    checkpointing=st.sampled_from(["none", "full"]),
)


@given(
    asked=st.integers(1, 5000),
    unit=st.sampled_from(["samples", "tokens"]),
    world_size=st.integers(1, 3),
    points=st.lists(candidates, min_size=1, max_size=4),
)
def test_the_nearest_global_batch_is_valid_and_none_nearer_is(
    asked: int, unit: str, world_size: int, points: list[Candidate]
) -> None:
    def valid(amount: int) -> bool:
        batch = GlobalBatch(amount, unit)  # type: ignore[arg-type]
        return any(workload(batch, world_size).grad_accum(point) for point in points)

    batch = GlobalBatch(asked, unit)  # type: ignore[arg-type]
    nearest = workload(batch, world_size).nearest_global_batch(points).amount
    assert valid(nearest)
    distance = abs(nearest - asked)
    assert not any(valid(a) for a in range(max(1, asked - distance + 1), asked + distance))


@pytest.mark.parametrize(
    ("candidate", "covers"),
    [
        (Candidate(depth=8, seq_len=256, micro_batch=16), True),
        (Candidate(depth=4, seq_len=128, micro_batch=8), True),
        (Candidate(depth=2, seq_len=256, micro_batch=16), False),
        (Candidate(depth=8, seq_len=64, micro_batch=16), False),
        (Candidate(depth=8, seq_len=256, micro_batch=4), False),
        (Candidate(depth=8, seq_len=256, micro_batch=16, checkpointing="full"), False),
        (Candidate(depth=8, seq_len=256, micro_batch=16, zero_stage=2), False),
        (Candidate(depth=8, seq_len=256, micro_batch=16, offload="optimizer"), False),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_a_candidate_covers_smaller_ones_of_its_kind(candidate: Candidate, covers: bool) -> None:
    assert candidate.covers(Candidate(depth=4, seq_len=128, micro_batch=8)) is covers


@given(candidates, candidates, candidates)
def test_covering_is_a_partial_order(a: Candidate, b: Candidate, c: Candidate) -> None:
    assert a.covers(a)
    assert not (a.covers(b) and b.covers(a)) or a == b
    assert not (a.covers(b) and b.covers(c)) or a.covers(c)


def test_a_key_names_every_axis() -> None:
    candidate = Candidate(depth=4, seq_len=256, micro_batch=8, checkpointing="full")
    assert candidate.key == "d4-s256-b8-z0-none-full"
