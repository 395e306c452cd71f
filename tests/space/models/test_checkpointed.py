"""What checkpointing leaves, by arithmetic."""

from __future__ import annotations

import pytest

from autotune.space.models.checkpointed import kept_blocks, recomputed_share

FLOATS = 34.0


@pytest.mark.parametrize("depth", [2, 5, 12, 48])
def test_each_kind_keeps_less_than_the_one_before(depth: int) -> None:
    kinds = ["none", "1/2", "full", "host"]
    kept = [kept_blocks(kind, depth, FLOATS) for kind in kinds]
    assert sorted(kept, reverse=True) == kept or depth == 2
    assert kept_blocks("full", depth, FLOATS) < kept_blocks("selective", depth, FLOATS)
    assert kept_blocks("1/3", depth, FLOATS) >= kept_blocks("1/2", depth, FLOATS)


def test_every_nth_block_begins_with_the_first() -> None:
    assert [recomputed_share("1/2", depth) for depth in (1, 2, 3, 4)] == [1, 0.5, 2 / 3, 0.5]
    assert recomputed_share("none", 4) == recomputed_share("selective", 4) == 0
    assert recomputed_share("full", 4) == recomputed_share("host", 4) == 1
