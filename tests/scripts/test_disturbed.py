"""What scripts/bench/disturbed.py makes of two studies; nothing here is timed."""

from __future__ import annotations

import psutil

from autotune.space.candidate import Candidate
from tests.support.scripts import load

bench = load("disturbed")
GOOD, WORSE = (Candidate(depth=2, seq_len=64, micro_batch=size) for size in (4, 2))


def row(busy: int, probes: int, found: Candidate) -> object:
    return bench.Row(busy=busy, elapsed_s=100.0, probes=probes, finals=4, found=found)


def test_promises_are_of_the_disturbed_study() -> None:
    lines = bench.report(
        [row(0, 3, GOOD), row(1, 10, WORSE)], {GOOD: 2e9, WORSE: 1.9e9}
    ).splitlines()
    assert lines[-2].endswith("| 10 | 10 | yes |")
    assert lines[-1].endswith("| 90% | 95% | yes |")
    lines = bench.report(
        [row(0, 30, GOOD), row(1, 9, WORSE)], {GOOD: 2e9, WORSE: 1.7e9}
    ).splitlines()
    assert lines[-2].endswith("| 10 | 9 | no |")
    assert lines[-1].endswith("| 90% | 85% | no |")


def test_no_busy_process_is_left() -> None:
    before = set(psutil.Process().children())
    with bench.beside(2):
        assert len(set(psutil.Process().children()) - before) == 2
    assert set(psutil.Process().children()) <= before
