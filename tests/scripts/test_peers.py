"""What scripts/bench/peers.py makes of tools and their results; none of the tools is run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.measure.runner import Job, Result
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Limits
from autotune.wire.stopping import Phase, Steps
from tests.support.scripted import report
from tests.support.scripts import load, rows

bench: Any = load("peers")
MIB = 2**20
LIMITS = Limits(
    capacity_bytes=1000 * MIB, ceiling=0.8, host_capacity_bytes=16000 * MIB, host_ceiling=1.0
)


def schedule(micro_batch: int, grad_accum: int = 1, **others: Any) -> Any:
    candidate = Candidate(
        depth=bench.DEPTH,
        seq_len=others.pop("seq_len", bench.SEQ_LEN),
        micro_batch=micro_batch,
        **others,
    )
    return bench.Schedule(candidate, grad_accum)


@pytest.fixture
def compared() -> Any:
    """Three micro-batches, the second of which is the best under the ceiling. A fourth does not
    fit, and only one tool could find two others."""
    measured = {
        schedule(1): bench.Measured([80e9, 90e9, 85e9], 400 * MIB),
        schedule(2): bench.Measured([90e9, 100e9, 110e9], 800 * MIB),
        schedule(3): bench.Measured([120e9, 110e9, 130e9], 801 * MIB),
        schedule(4): bench.Measured(reason="runs out of memory"),
        schedule(1, 2): bench.Measured([95e9], 500 * MIB),
        schedule(2, seq_len=64, checkpointing="full"): bench.Measured([150e9], 600 * MIB),
    }
    return bench.Comparison(measured, list(measured)[:4], LIMITS)


def test_the_optimum_is_the_fastest_under_the_ceiling(compared: Any) -> None:
    assert compared.optimum == schedule(2)
    assert rows(bench.report([], compared))["exhaustive optimum"] == [
        "micro_batch 2", "100.0%", "100 GFLOP/s", "80%", "", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "cells"),
    [
        ({"micro_batch": 1}, ["micro_batch 1", "85.0%", "85.0 GFLOP/s", "40%", ""]),
        ({"micro_batch": 3},
         ["micro_batch 3", "120.0%", "120 GFLOP/s", "80%", "over the ceiling"]),
        ({"micro_batch": 4}, ["micro_batch 4", "", "", "", "runs out of memory"]),
        ({"micro_batch": 2, "seq_len": 64, "checkpointing": "full"},
         ["micro_batch 2, seq_len 64, checkpointing full", "150.0%", "150 GFLOP/s", "60%", ""]),
        ({"micro_batch": 1, "grad_accum": 2},
         ["micro_batch 1, grad_accum 2", "95.0%", "95.0 GFLOP/s", "50%", ""]),
    ],
    ids=["fits", "over the ceiling", "out of memory", "others' axes", "accumulation"],
)  # fmt: skip
def test_a_result_is_shown_with_its_share_its_costs_and_what_is_wrong(
    compared: Any, asked: dict[str, Any], cells: list[str]
) -> None:
    wanted = schedule(**asked)
    found = bench.Found(tool="tool", schedule=wanted, wall_s=12.3, launches=4, ooms=2)
    *shown, remark = cells
    assert rows(bench.report([found], compared))["tool"] == [*shown, "12 s", "4", "2", remark]


def test_the_whole_axis_has_the_range_of_its_repeats(compared: Any) -> None:
    table = rows(bench.curve(compared))
    assert list(table) == ["1", "2", "3", "4"]
    assert table["1"] == ["85.0G", "80.0G to 90.0G", "40%", ""]
    assert table["4"] == ["", "", "", "runs out of memory"]


def test_half_of_the_rounds_choose_and_half_compare(compared: Any) -> None:
    slow, fast = compared.measured[schedule(2)], compared.measured[schedule(1)]
    slow.rounds = [10e9] * 8 + [12e9] * 10
    fast.rounds = [11e9] * 8 + [9e9] * 9 + [18e9]
    over = compared.measured[schedule(3)]
    over.rounds = [20e9] * 18
    assert compared.optimum == schedule(1)
    share = compared.share(schedule(2))
    assert share.median == pytest.approx(12 / 9)
    assert share.steps == 9
    found = [bench.Found(tool="tool", schedule=schedule(size)) for size in (2, 3)]
    shown = rows(bench.report(found[:1], compared))
    assert shown["exhaustive optimum"][:2] == ["micro_batch 1", "100.0%"]
    assert shown["tool"][1] == "133.3% (133.3% to 133.3%)"
    assert rows(bench.report(found[1:], compared))["tool"][-1] == "over the ceiling"


def test_where_nothing_fits_there_is_no_share() -> None:
    only = schedule(3)
    compared = bench.Comparison({only: bench.Measured([1e9], 900 * MIB)}, [only], LIMITS)
    table = rows(bench.report([bench.Found(tool="tool", schedule=only, wall_s=1.0)], compared))
    assert table["exhaustive optimum"][0] == "none"
    assert table["tool"][:2] == ["micro_batch 3", ""]


def test_a_step_is_worth_the_flops_of_all_its_micro_steps() -> None:
    measured, accumulated = bench.Measured(), schedule(3, 4)
    for step_s, peak, short in ((2.0, 5, False), (1.0, 3, False), (4.0, 6, True)):
        said = Result(verdict=Verdict.OK, report=report(step_s, peak * MIB))
        bench.add(measured, accumulated, said, short)
    step = bench.WORKLOAD.shape(bench.DEPTH).flops_per_token(bench.SEQ_LEN) * bench.SEQ_LEN * 12
    assert measured.flops_per_s == pytest.approx([step / 2, step])
    assert measured.rounds == pytest.approx([step / 4])
    assert measured.peak_bytes == 5 * MIB


@pytest.mark.parametrize(
    ("first", "short", "jobs"),
    [
        (Result(verdict=Verdict.OOM, warm=True), True, [False, True]),
        (
            Result(verdict=Verdict.OK, report=report(1.0, 801 * MIB), warm=True),
            False,
            [False, True],
        ),
        (Result(verdict=Verdict.OK, report=report(1.0, 801 * MIB), warm=True), True, [False]),
        (Result(verdict=Verdict.OK, report=report(1.0, 801 * MIB)), False, [False]),
        (Result(verdict=Verdict.OK, report=report(1.0, 799 * MIB), warm=True), False, [False]),
    ],
)
def test_what_lacks_memory_in_a_warm_group_is_run_in_a_fresh_one(
    first: Result, short: bool, jobs: list[bool]
) -> None:
    asked: list[bool] = []

    class Runner:
        def run(self, job: Job, deadline: float) -> Result:
            asked.append(job.fresh)
            return first if len(asked) == 1 else Result(verdict=Verdict.OK)

    bench.probe(Runner(), schedule(2), LIMITS, short)
    assert asked == jobs


def test_short_probes_are_probes() -> None:
    steps = Steps(bench.SHORT, None)
    for phase in (Phase.WARMUP, Phase.TIMED):
        while steps.wanted(phase):
            steps.add(phase, 1.0, 1.0)
    assert (len(steps.warmup.step_s), len(steps.timed.step_s)) == (2, 2)


def search(folder: Path, text: str, **others: Any) -> Any:
    """The row of a tool whose script is `text`."""
    script = folder / "tool.py"
    script.write_text(f"import sys\nfrom peer_tools.task import Answer, Task\n{text}\n")
    known = {"modules": (), "limit_s": 60.0} | others
    peer = bench.Peer("tool", known["modules"], str(script))
    asked = bench.Task(
        folder=str(folder),
        depth=1,
        width=64,
        vocab_size=256,
        seq_len=32,
        most=8,
        capacity_bytes=2**30,
        mode="",
    )
    return bench.searched(peer, asked, known["limit_s"])


def test_a_missing_tool_has_a_row(compared: Any, tmp_path: Path) -> None:
    found = search(tmp_path, "raise AssertionError", modules=("sys", "no_such_tool"))
    assert rows(bench.report([found], compared))["tool"] == [
        "none", "", "", "", "", "", "", "not installed: no_such_tool",
    ]  # fmt: skip


def test_what_a_tool_found_is_of_its_processes(tmp_path: Path) -> None:
    said = "task = Task.read(sys.argv[1])\nfor event in ('launch', 'oom', 'oom'):"
    found = search(tmp_path, f"{said}\n    task.count(event)\ntask.tell(Answer(7, 2))")
    assert found.schedule == schedule(7, 2)
    assert (found.launches, found.ooms, found.remark) == (1, 2, "")


def test_a_tool_that_fails_is_shown_with_its_last_line(tmp_path: Path) -> None:
    found = search(tmp_path, "raise ValueError('of its own')")
    assert found.schedule is None
    assert found.remark == "exit code 1: ValueError: of its own"


def test_a_tool_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found = search(tmp_path, "import time\ntime.sleep(3600)", limit_s=0.0)
    assert found.schedule is None
    assert found.remark.endswith("without a result")


def test_a_study_costs_its_ranks_and_its_ooms(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("group001-rank0.log", "group002-rank0.log", "ops-0.log"):
        (tmp_path / "logs" / name).touch()
    (tmp_path / "trials.csv").write_text("number,verdict\n0,ok\n1,oom\n2,skipped\n3,oom\n")
    assert bench.accounts(tmp_path) == (2, 2)
