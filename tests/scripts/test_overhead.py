"""What scripts/bench/overhead.py makes of a study's trials; nothing here is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.result.folder import table
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from tests.support.records import record
from tests.support.scripts import load, rows

bench: Any = load("overhead")


def trial(started_s: float, probe_s: float, **others: Any) -> dict[str, Any]:
    known = {"verdict": "ok", "group_start_s": 0.0, "step_s": probe_s, "attempts": 1} | others
    return {"started_s": started_s, "probe_s": probe_s} | known


def test_trials_that_never_ran_take_no_time_and_are_out(tmp_path: Path) -> None:
    skipped = record(Candidate(depth=2, seq_len=64, micro_batch=2), Verdict.SKIPPED, number=1)
    unrun = table.row(skipped) | {"probe_s": 0.0, "warmup_s": 0.0, "timed_s": 0.0}
    both = [table.row(record(Candidate(depth=2, seq_len=64, micro_batch=1))), unrun]
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in both]
    path = tmp_path / "trials.csv"
    path.write_text("\n".join([",".join(table.COLUMNS), *lines]) + "\n", encoding="utf-8")
    [found] = bench.read_trials(tmp_path).to_dict("records")
    expected = trial(0.0, 4.0, group_start_s=1.0, step_s=3.0)
    assert {name: found[name] for name in expected} == expected


def test_a_gap_reaches_from_one_trials_end_to_the_next_ones_start() -> None:
    trials = pd.DataFrame([trial(1.0, 2.0), trial(3.5, 1.0), trial(4.75, 1.0)])
    assert list(bench.gaps_s(trials)) == pytest.approx([0.5, 0.25])


def test_a_missed_promise_is_printed_as_not_held() -> None:
    trials = pd.DataFrame([trial(float(i), 1.0) for i in range(30)])
    accounts = bench.Accounts(exit_code=0, cpu_s=2.0, import_cpu_s=1.5, peak_rss_bytes=10**8)
    deepspeed = pd.DataFrame(
        [trial(float(i), 1.0, group_start_s=s) for i, s in enumerate([4.0, 2.6])]
    )
    shown = rows(bench.promises(trials, accounts, 35.0, 34.0, deepspeed))
    assert {measure: held for measure, (*_, held) in shown.items()} == {
        "probes run, finals included": "yes",
        "wall time inside warm-up and timed steps": "yes",
        "start of a group with ddp, median": "no",
        "start of a group with DeepSpeed, median": "no",
        "study's work between two probes, mean (max) wall time": "yes",
        "study's own CPU time per probe, imports left out": "yes",
        "the same with its imports": "no",
        "study's own peak RSS": "yes",
        "overshoot of the budget, from process start to exit": "yes",
    }


def test_probes_that_the_budget_cut_short_are_not_counted() -> None:
    trials = pd.DataFrame([trial(0.0, 1.0), trial(1.0, 1.0, verdict="skipped")])
    accounts = bench.Accounts(exit_code=0, cpu_s=0.0, import_cpu_s=0.0, peak_rss_bytes=0)
    table_text = bench.promises(trials, accounts, wall_s=2.0, budget_s=2.0, deepspeed=trials[:0])
    assert "| probes run, finals included | at least 25 | 1 | no |" in table_text
    assert "| 50% | no |" in table_text


def test_the_parts_of_the_wall_time_add_up_to_it() -> None:
    trials = pd.DataFrame([
        trial(1.0, 5.0, group_start_s=2.0, step_s=2.5),
        trial(6.5, 2.0, step_s=1.5, attempts=2),
    ])  # fmt: skip
    shown = rows(bench.breakdown(trials, wall_s=10.0))
    seconds = [float(time.split()[0]) for time, _ in shown.values()]
    assert seconds == [4.0, 2.0, 1.0, 0.5, 2.5]
