"""What the benchmark of several slots makes of a recorded grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import recorded, scripts

scale = scripts.load("scale")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return recorded.write(tmp_path / "g.csv")


def test_more_slots_make_more_probes_a_minute_and_find_as_much(grid: Path) -> None:
    one, four = (scale.carried_out(scale.Task(grid, 0.8, slots, seed=0)) for slots in (1, 4))
    assert four.search_s < one.search_s
    assert four.probes / four.search_s > 2 * one.probes / one.search_s
    assert four.result <= one.result + 0.01


def test_the_same_task_comes_out_the_same(grid: Path) -> None:
    task = scale.Task(grid, 0.8, 4, seed=1)
    assert scale.carried_out(task) == scale.carried_out(task)


def test_the_table_says_whether_the_promise_is_held() -> None:
    def ran(slots: int, result: float) -> Any:
        return scale.Ran(
            slots=slots,
            probes=10 * slots,
            search_s=60.0,
            whole_s=90.0,
            found=result,
            result=result,
        )

    held = scale.slots_table([ran(slots, 0.05) for slots in scale.SLOTS])
    assert held.endswith("+0.0 points (at most +1): held.")
    worse = scale.slots_table([ran(slots, 0.02 * slots) for slots in scale.SLOTS])
    assert worse.endswith("+14.0 points (at most +1): not held.")
