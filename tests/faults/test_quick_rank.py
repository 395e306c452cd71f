"""Many worker groups in a row, of ranks that take milliseconds: what is left of them."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measure.runner import group, local
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from tests.support import quick_rank
from tests.support.pools import MIB, SMALL, Make, Started, ranks
from tests.support.programs import QUICK_RANK

pytestmark = pytest.mark.slow

GROUPS = int(os.environ.get("QUICK_GROUPS", "60"))
LARGE = replace(SMALL, micro_batch=512, seq_len=512)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)


def held() -> tuple[int, int, int]:
    """Children of this process, its open files and its threads."""
    me = psutil.Process()
    return len(ranks()), me.num_fds(), me.num_threads()


def test_a_quick_rank_answers_as_its_formulas_say(start: Make) -> None:
    two = start(world_size=2)
    result = two.run()
    assert result.report is not None
    assert set(result.report.step_s) == {quick_rank.micro_step_s(1, 32, "none")}
    assert result.report.peaks.device_bytes == quick_rank.peak_bytes(1, 32, "none")
    assert two.run(LARGE).verdict is Verdict.OOM


@pytest.mark.parametrize("fault", quick_rank.FAULTS)
def test_a_quick_rank_goes_wrong_as_it_is_told(
    start: Make, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for phase in (Phase.WARMUP, Phase.TIMED):
        monkeypatch.setitem(group.PHASE_DEADLINE_S, phase, 1.0)
    monkeypatch.setattr(group, "PEER_GRACE_S", 0.1)
    monkeypatch.setattr("autotune.measure.runner.channel.PEER_TIMEOUT_S", 1)
    monkeypatch.setenv("QUICK_FAULTS", f"{fault}:1")
    result = start(world_size=2).run()
    assert result.verdict is (Verdict.HUNG if fault in ("hang", "stop") else Verdict.CRASHED)
    assert held()[0] == 0


def test_groups_that_run_out_of_memory_leave_nothing(tmp_path: Path) -> None:
    started = Started(tmp_path)  # one rank a group
    for _ in range(3):  # what is made once
        assert started.run(LARGE).verdict is Verdict.OOM
    gc.collect()
    before, before_bytes = held(), psutil.Process().memory_info().rss
    for _ in range(GROUPS):
        assert started.run(LARGE).verdict is Verdict.OOM
    gc.collect()
    assert held() == before
    assert before[0] == 0
    assert psutil.Process().memory_info().rss - before_bytes < 4 * MIB
    assert {path.suffix for path in tmp_path.iterdir()} == {".log"}
    started.pool.close()
