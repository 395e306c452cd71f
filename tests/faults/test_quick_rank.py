"""Many worker groups in a row, of ranks that take milliseconds: what is left of them."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measure.runner import local
from autotune.space.outcome import Verdict
from tests.support.pools import MIB, SMALL, Started, ranks
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
