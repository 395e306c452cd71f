"""What the benchmarks of several slots, and of many nodes, make of a recorded grid."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import NoNodesError
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Job
from autotune.space.outcome import Verdict
from autotune.study.prober import rule_for
from autotune.wire.budget import VirtualTime
from tests.support import defaults, recorded, scripts

scale, grids = (scripts.load(name) for name in ("scale", "searches.grids"))


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
            put_off=0,
            close_s=30.0,
            search_s=60.0,
            whole_s=90.0,
            found=result,
            result=result,
        )

    held = scale.slots_table([ran(slots, 0.05) for slots in scale.SLOTS])
    assert held.endswith("+0.0 points (at most +1): held.")
    worse = scale.slots_table([ran(slots, 0.02 * slots) for slots in scale.SLOTS])
    assert worse.endswith("+14.0 points (at most +1): not held.")


def lossy(grid: Path, now: VirtualTime, *, seed: int, per_s: float) -> Any:
    truth = grids.Truth(grid, 0.8)
    replay = Replay(truth.grid, truth.space.limits, now, 0)
    return truth, scale.Lossy(replay, now, random.Random(seed), per_s)


def job(truth: Any) -> Job:
    candidate = truth.space.candidates[0]
    return defaults.job(candidate, rule=rule_for("cpu", truth.options))


def test_a_node_that_is_never_lost_replays_as_any_other(grid: Path) -> None:
    now = VirtualTime()
    truth, node = lossy(grid, now, seed=0, per_s=0.0)
    assert node.run(job(truth), 1e6).verdict is Verdict.OK
    assert now() > 0


def test_what_a_lost_node_ran_is_put_off_and_the_node_is_back_later_or_gone(grid: Path) -> None:
    ends = set()
    for seed in range(20):
        now = VirtualTime()
        truth, node = lossy(grid, now, seed=seed, per_s=10.0)
        result = node.run(job(truth), 1e6)
        assert (result.verdict, result.put_off) == (Verdict.SKIPPED, True)
        assert now() >= scale.NOTICED_S
        try:
            node.run(job(truth), 1e6)
            ends.add("back")
        except NoNodesError:
            ends.add("gone")
    assert ends == {"back", "gone"}


def test_a_study_on_nodes_that_are_lost_often_ends_with_a_result(grid: Path) -> None:
    ran = scale.carried_out(scale.Task(grid, 0.8, 4, seed=0, lost_per_hour=600.0))
    assert ran.put_off > 0
    assert ran.result < 1.0
