"""What is expected of runs that others recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autotune.space.candidate import Candidate
from autotune.space.workload import Workload
from autotune.study.predict.fit import FitModel
from autotune.study.predict.sweep import Sweep
from tests.support.records import WORKLOAD

CAPACITY = 80 * 2**30
TABLE = replace(
    WORKLOAD, model="table:runs", world_size=16, recipe={"command": "", "global_batch": 64}
)


def run(own: str = "tp=1;pp=1", micro_batch: int = 1, **more: Any) -> tuple[Workload, Candidate]:
    plain = {"depth": 1, "seq_len": 4096}
    return TABLE, Candidate(**plain | more, micro_batch=micro_batch, own=own)


def test_a_pipeline_waits_longer_the_fewer_micro_batches_a_step_has() -> None:
    points = [run("tp=1;pp=8", 1), run("tp=1;pp=8", 8), run("tp=1;pp=1", 1)]
    few, many = (Sweep(points).share("bubble")[i] for i in (1, 0))
    assert few == pytest.approx(7 / 4 / (1 + 7 / 4), rel=0.1)  # of 64 / (8 x 2) micro-batches
    assert many == pytest.approx(7 / 32 / (1 + 7 / 32), rel=0.1)
    assert Sweep(points).share("bubble")[2] == 0


def test_degrees_and_stages_cut_what_is_held() -> None:
    points = [run(), run("tp=4;pp=1"), run(zero_stage=1), run(micro_batch=4)]
    plain, tp, sharded, larger, _ = Sweep(points).peaks(CAPACITY)[0]
    assert tp < plain
    assert sharded < plain < larger


def test_a_fast_device_has_a_small_model() -> None:
    points = [run("tp=4;pp=2"), run("tp=4;pp=1"), run("tp=1;pp=1", 8)]
    fast, slow = FitModel(points, CAPACITY), FitModel(points, CAPACITY)
    fast.rate(0, 5e4)
    slow.rate(0, 5e2)
    assert (fast.chance(CAPACITY) > slow.chance(CAPACITY)).all()
    assert fast.predict(0).bytes < slow.predict(0).bytes
    assert math.isfinite(slow.predict(2).high_bytes)
