"""How scripts/bench/learning.py cuts a grid, and what it makes of two searches."""

from __future__ import annotations

from pathlib import Path

from tests.support import recorded
from tests.support.scripts import load

bench = load("learning")


def test_the_smaller_values_are_known_and_the_others_left(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    recorded.write(path)
    [task, *_] = bench.tasks(path, "depth", 1)
    assert max(task.known) < min(task.left)
    pair = bench.carried_out(task)
    assert pair is None or len(pair.learned) == len(pair.without) == len(bench.PROBES)


def test_a_promise_is_of_the_search_that_learned(tmp_path: Path) -> None:
    of = bench.Task(Path("g.csv"), "depth", (2,), (4,), 0.8, 0)
    bad, good = [0.5] * len(bench.PROBES), [0.0] * len(bench.PROBES)
    assert bench.report(of, [bench.Pair(bad, good, (12, 5), 0.0)]).endswith(
        "| 2.0% | 0.0% | yes |"
    )
    assert bench.report(of, [bench.Pair(good, bad, (12, 5), 0.0)]).endswith(
        "| 2.0% | 50.0% | no |"
    )
