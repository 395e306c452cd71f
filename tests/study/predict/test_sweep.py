"""What is expected of runs that others recorded."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from autotune.measure.testbed.recording import Recording
from autotune.space.candidate import Candidate
from autotune.space.workload import Workload
from autotune.study.predict.fit import FitModel, draws_of
from autotune.study.predict.memory import OutOf, Within
from autotune.study.predict.speed import SpeedModel
from autotune.study.predict.sweep import Sweep
from autotune.wire.stopping import Interval
from tests.support import scripts
from tests.support.records import WORKLOAD

bench = scripts.load("sweeps")
CAPACITY = 80 * 2**30
TABLE = replace(
    WORKLOAD, model="table:runs", world_size=16, recipe={"command": "", "global_batch": 64}
)


def run(own: str = "tp=1;pp=1", micro_batch: int = 1, **more: Any) -> tuple[Workload, Candidate]:
    plain = {"depth": 1, "seq_len": 4096}
    return TABLE, Candidate(**plain | more, micro_batch=micro_batch, own=own)


def log_times(*points: tuple[Workload, Candidate]) -> Any:
    return Sweep(points).log_times(200)


def test_a_pipeline_waits_longer_the_fewer_micro_batches_a_step_has() -> None:
    waits, idles, _ = np.median(
        log_times(run("tp=1;pp=8", 1), run("tp=1;pp=8", 8), run("tp=1;pp=1", 8)), axis=0
    )
    assert idles - waits > math.log((1 + 7 / 4) / (1 + 7 / 32)) - 0.5


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        (run("tp=2;pp=1", 4), run("tp=16;pp=1", 4)),  # beyond a machine
        (run("tp=8;pp=1", 8), run("tp=8;pp=1", 1)),  # launches are not hidden
        (run("tp=1;pp=1", 4), run("tp=1;pp=1", 4, zero_stage=3)),  # weights are gathered
        (run("tp=1;pp=1", 4), run("tp=1;pp=1", 4, checkpointing="full")),
    ],
)
def test_no_draw_has_what_costs_more_as_faster(
    faster: tuple[Workload, Candidate], slower: tuple[Workload, Candidate]
) -> None:
    first, second = log_times(faster, slower).T
    assert (first < second).all()


def test_degrees_and_stages_cut_what_is_held() -> None:
    points = [run(), run("tp=4;pp=1"), run(zero_stage=1), run(micro_batch=4)]
    draws, weights = Sweep(points).peaks(CAPACITY, 500)
    assert weights.sum() == pytest.approx(1.0)
    plain, tp, sharded, larger, _ = draws.T
    assert (tp < plain).all()
    assert (sharded < plain).all()
    assert (plain < larger).all()


def test_a_pipeline_of_more_stages_than_blocks_does_not_fit() -> None:
    points = [run("tp=1;pp=8"), run("tp=1;pp=32"), run("tp=8;pp=32"), run("tp=8;pp=8")]
    model = FitModel(points, CAPACITY)
    model.observe(0, Within(CAPACITY))
    model.observe(1, OutOf(CAPACITY))  # fewer bytes than what fitted
    assert model.chance(CAPACITY)[2] < 0.1
    assert model.chance(CAPACITY)[3] > 0.9


def test_a_fast_device_has_a_small_model() -> None:
    points = [run("tp=4;pp=2"), run("tp=4;pp=1"), run("tp=1;pp=1", 8)]
    fast, slow = FitModel(points, CAPACITY), FitModel(points, CAPACITY)
    fast.work(math.log(1 / 5e4), 0.1)
    slow.work(math.log(1 / 5e2), 0.1)
    assert (fast.chance(CAPACITY) > slow.chance(CAPACITY)).all()
    assert fast.predict(0).bytes < slow.predict(0).bytes
    assert math.isfinite(slow.predict(2).high_bytes)


def test_a_size_that_no_device_holds_is_not_believed() -> None:
    """As where the rates are those of a slow device, or in another unit."""
    points = [run("tp=4;pp=2"), run("tp=4;pp=1"), run("tp=1;pp=1", 8)]
    model = FitModel(points, CAPACITY)
    before = model.chance(CAPACITY)
    model.work(math.log(1 / 5e3), 0.1)
    model.work(math.log(1.0), 0.1)
    assert model.chance(CAPACITY) == pytest.approx(before)


def test_rates_tell_how_long_a_device_computes_for_a_token(tmp_path: Path) -> None:
    bench.split(tmp_path)
    recording = Recording(tmp_path / "3.57B_01_nodes.csv")
    workload = recording.grid.workload
    rows = [row for row in recording.grid.rows if row.report is not None]
    speed = SpeedModel([(workload, row.candidate) for row in rows], "cuda")
    for place in (0, 5, 10, 15):
        row = rows[place]
        assert row.report is not None
        assert row.report.ran is not None
        share = workload.step_tokens(row.candidate) / row.report.ran.tokens
        step_s = share * row.report.step_s[0]
        speed.observe(place, Interval(step_s, step_s, step_s, 1), 0.0)
    log_s, deviation = speed.work
    assert log_s == pytest.approx(math.log(6 * 3.57e9 / 4e14), abs=0.3)
    assert deviation < 0.4


@pytest.mark.parametrize("rate", ["tokens_per_s_per_device", "samples_per_s", "step_s"])
def test_a_table_without_lengths_is_searched_as_well(tmp_path: Path, rate: str) -> None:
    """Its rates are in tokens, or in samples of unknown length."""
    bench.split(tmp_path)
    path = tmp_path / "8.86B_04_nodes.csv"
    runs, toml = pandas.read_csv(path), path.with_suffix(".toml")
    per_device = runs["tokens_per_s_per_device"]
    samples_per_s = per_device * 32 / 4096
    runs[rate] = {
        "tokens_per_s_per_device": per_device, "samples_per_s": samples_per_s,
        "step_s": 256 / samples_per_s,
    }[rate]  # fmt: skip
    runs.to_csv(path, index=False)
    text = toml.read_text().replace("seq_len = 4096\n", "")
    toml.write_text(text.replace("tokens_per_s_per_device =", f"{rate} =").replace(
        '"tokens_per_s_per_device"', f'"{rate}"'
    ))  # fmt: skip
    found = bench.carried_out(bench.Task(path, "frontier", 0))
    assert found.regrets[12] < 0.01
    assert found.lost <= 0.15


def test_one_run_out_of_memory_may_have_broken_for_another_reason() -> None:
    points = [run("tp=1;pp=1", 8), run("tp=8;pp=2", 1), run("tp=8;pp=1", 1)]
    model = FitModel(points, CAPACITY)
    model.observe(0, Within(CAPACITY))  # needs the most
    before = model.chance(CAPACITY)
    model.observe(1, OutOf(CAPACITY))
    assert before[2] > 0.9
    assert model.chance(CAPACITY)[2] > 0.5


def test_many_runs_have_fewer_draws() -> None:
    assert draws_of(100) == 4000
    assert draws_of(20_000) == 200


def test_the_search_on_published_runs_loses_little(tmp_path: Path) -> None:
    """Of the model whose runs chose no number."""
    bench.split(tmp_path)
    found = [
        bench.carried_out(bench.Task(tmp_path / f"3.57B_{nodes:02}_nodes.csv", "frontier", 0))
        for nodes in (1, 2, 4, 16, 32)
    ]
    assert statistics.median(each.regrets[12] for each in found) < 0.01
    assert max(each.regrets[20] for each in found) < 0.1
    assert statistics.median(each.lost for each in found) <= 0.15
