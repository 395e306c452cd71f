"""What the benchmark of the search makes of a recorded grid, and the rules it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.measure.replay.grid import GridRow
from autotune.space.candidate import Candidate
from autotune.study.predict.predictor import Predictor
from autotune.wire.reports import Peaks
from tests.support import recorded, scripts
from tests.support.programs import ROOT
from tests.support.records import MIB, space

bench = scripts.load("search")
grids, rules, samplers, tables = (
    scripts.load(f"searches.{name}") for name in ("grids", "rules", "samplers", "tables")
)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
LADDER = [Candidate(depth=4, seq_len=128, micro_batch=size) for size in SIZES]


def walk(rule: Generator[Candidate, float | None, None], most: int) -> list[int]:
    """Micro-batches that `rule` tries where those up to `most` fit, at their own speed."""
    tried: list[int] = []
    value: float | None = None
    try:
        candidate = next(rule)
        while True:
            tried.append(candidate.micro_batch)
            value = float(candidate.micro_batch) if candidate.micro_batch <= most else None
            candidate = rule.send(value)
    except StopIteration:
        return tried


def test_accelerate_goes_down_by_a_tenth_until_it_fits() -> None:
    assert walk(rules.accelerate(LADDER), most=8) == [16, 12, 8]
    assert walk(rules.accelerate(LADDER), most=0) == [16, 12, 8, 6, 4, 3, 2, 1]


def test_power_doubles_from_2_until_it_does_not_fit() -> None:
    assert walk(rules.power(LADDER), most=6) == [2, 4, 8]
    assert walk(rules.power(LADDER), most=99) == [2, 4, 8, 16]


def test_bisect_looks_between_the_last_two_doublings() -> None:
    assert walk(rules.bisect(LADDER), most=6) == [2, 4, 8, 6]
    assert walk(rules.bisect(LADDER), most=12) == [2, 4, 8, 16, 12]


def test_deepspeed_tries_both_ends_then_between_and_then_the_next_stage() -> None:
    stages = [
        [Candidate(depth=4, seq_len=128, micro_batch=size, zero_stage=stage) for size in SIZES]
        for stage in (0, 1)
    ]
    assert walk(rules.deepspeed(stages), most=16)[:4] == [1, 16, 3, 6]
    # The next stage begins at the largest that the one before could hold.
    assert walk(rules.deepspeed(stages), most=16)[-1] == 16


def test_deepspeed_stops_where_a_stage_cannot_hold_what_the_last_one_could() -> None:
    stages = [
        [Candidate(depth=4, seq_len=128, micro_batch=size, zero_stage=stage) for size in SIZES]
        for stage in (0, 1, 2)
    ]
    rule = rules.deepspeed(stages)
    seen, candidate = [], next(rule)
    try:
        while True:
            seen.append(candidate)
            fits = candidate.zero_stage == 0
            candidate = rule.send(float(candidate.micro_batch) if fits else None)
    except StopIteration:
        pass
    assert {c.zero_stage for c in seen} == {0, 1}


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return recorded.write(tmp_path / "g.csv")


@pytest.fixture
def truth(grid: Path) -> Callable[[float], Any]:
    """Of that grid under a ceiling."""
    return lambda ceiling: grids.Truth(grid, ceiling)


def test_the_truth_under_a_ceiling_is_the_fastest_that_fits(truth: Callable[[float], Any]) -> None:
    whole, half = truth(1.0), truth(0.5)
    largest = max(space().candidates, key=lambda c: c.tokens).tokens * MIB
    assert all(c.tokens * MIB <= largest / 2 for c in half.fitting)
    assert len(half.fitting) < len(whole.fitting) == len(space().candidates)
    assert half.best < whole.best
    assert half.regret(None) == 1.0
    assert half.regret(max(half.fitting, key=lambda c: half.values[c])) == 0.0


def test_what_was_over_the_ceiling_once_does_not_fit(tmp_path: Path) -> None:
    often = [recorded.row(c, repeat=n) for c in space().candidates for n in range(3)]
    before = grids.Truth(recorded.write(tmp_path / "before.csv", often), 0.5)
    largest = max(before.fitting, key=lambda c: c.tokens)
    for place, row in enumerate(often):
        if row.candidate == largest and row.repeat == 0:
            assert row.report is not None
            over = replace(row.report, peaks=Peaks.same(2 * row.report.peaks.device_bytes))
            often[place] = replace(row, report=over)
    after = grids.Truth(recorded.write(tmp_path / "after.csv", often), 0.5)
    assert after.fitting == [c for c in before.fitting if c != largest]


def test_what_is_drawn_does_not_judge_where_others_do(tmp_path: Path) -> None:
    def faster(row: GridRow, factor: float) -> GridRow:
        assert row.report is not None
        step_s = [each / factor for each in row.report.step_s]
        return replace(row, report=replace(row.report, step_s=step_s))

    lucky = space().candidates[0]
    rows = [recorded.row(c, repeat=n) for c in space().candidates for n in range(3)]
    rows = [faster(r, 100.0) if (r.candidate, r.repeat) == (lucky, 1) else r for r in rows]
    path = recorded.write(tmp_path / "g.csv", rows)
    assert grids.repeats(path) == 3
    drawn, calm = grids.Truth(path, 1.0, repeat=1), grids.Truth(path, 1.0, repeat=2)
    assert {row.repeat for row in drawn.grid.rows} == {1}
    # It takes what was lucky for the best, which the others do not confirm.
    assert drawn.oracle(seed=0) == drawn.regret(lucky)
    assert drawn.regret(lucky) > 0.1
    assert calm.values[lucky] > 10 * drawn.values[lucky]


def test_without_noise_the_oracle_has_no_regret(truth: Callable[[float], Any]) -> None:
    assert truth(0.7).oracle(seed=1) == 0.0


def test_chunks_of_logits_are_expected_to_cost_what_was_recorded() -> None:
    """They pass over the head's weights again and again, however few tokens they have."""
    known = grids.truth(ROOT / "results" / "grids" / "cpu-1-rank-axes.csv", 0.8)
    expected_s = dict(
        zip(
            known.space.candidates,
            np.exp(Predictor(known.space, "cpu").log_step_s().mean),
            strict=True,
        )
    )
    few = [c for c in expected_s if c.micro_batch == 1 and c.loss == "whole"]
    pairs = [(c, replace(c, loss="chunked")) for c in few]
    expected = np.median([expected_s[chunked] / expected_s[c] for c, chunked in pairs])
    recorded = np.median([known.values[c] / known.values[chunked] for c, chunked in pairs])
    assert recorded > 1.5
    assert expected == pytest.approx(recorded, rel=0.1)


@pytest.mark.parametrize("method", ["frontier", "tpe", "random", "grid", *rules.RULES])
def test_every_method_finds_something_in_time(truth: Callable[[float], Any], method: str) -> None:
    make = rules.rule_course if method in rules.RULES else samplers.sampler_course
    known = truth(0.7)
    course = make(known, method, 0, 12)
    assert len(course) <= 12
    assert course[-1].found in known.fitting
    times = [point.elapsed_s for point in course]
    assert times == sorted(times)
    assert times[0] > 0


def test_grid_search_in_order_needs_every_probe(truth: Callable[[float], Any]) -> None:
    known = truth(1.0)
    course = samplers.sampler_course(known, "grid", 0, len(space().candidates))
    assert known.regret(course[-1].found) == 0.0
    assert known.regret(course[0].found) > 0.2


@pytest.mark.parametrize("method", ["frontier", "random", "power"])
def test_a_seed_gives_the_same_search_again(grid: Path, method: str) -> None:
    task = bench.Task(grid, 0.7, method, 3)
    assert bench.carried_out(task) == bench.carried_out(task)


def made(method: str, regret: float) -> Any:
    return tables.Search(
        method=method,
        regrets=dict.fromkeys(tables.PROBES, regret),
        by_minute=dict.fromkeys(tables.MINUTES, regret),
        lost=0.2,
        probes=9,
        errors=(0.01, 0.03, 0.02),
    )


STUDIES = [
    tables.Whole(3.0, 0.02, 0.1, over=False),
    tables.Whole(3.0, 1.0, 0.0, over=True),
    tables.Whole(1.0, 0.5, 0.0, over=False),
]


def test_the_results_of_whole_studies_have_a_table() -> None:
    said = tables.results([*STUDIES, tables.Whole(10.0, 0.0, 0.0, over=False)])
    assert said.splitlines()[2:] == [
        "| 1 min | 50.0 / 50.0 | 0 of 1 | 0.0% | 0 of 1 |",
        "| 3 min | 51.0 / 90.2 | 1 of 2 | 5.0% | 1 of 2 |",
        "| 10 min | 0.0 / 0.0 | 0 of 1 | 0.0% | 0 of 1 |",
    ]


def test_the_tables_say_what_was_missed() -> None:
    searches = [made("frontier", 0.10), made("random", 0.03)]
    said = tables.promises(searches, STUDIES, [0.0])
    assert "| median regret after 6 probes | 5.0% | 10.0% | no |" in said
    assert "| probes lost to memory | 8.0% | 20.0% | no |" in said
    assert "| median regret of the result after 3 min | 1.5% | 51.0% | no |" in said
    assert "| lost to memory in 3 min, finals included | 8.0% | 5.0% | yes |" in said
    assert "| studies that found nothing | 0.0% | 50.0% | no |" in said
    assert "random after 4" in said
    table = tables.regret_table(searches, [0.01, 0.02])
    assert "| after 12 probes | 10.0 / 10.0 | 3.0 / 3.0 |" in table
    assert "predicts peaks to 2.0% (median)" in table


def test_without_the_default_sampler_there_is_a_table_and_no_promise() -> None:
    searches = [made("random", 0.03)]
    assert tables.promises(searches, STUDIES, [0.0]) == ""
    assert "| searches | 1 |" in tables.regret_table(searches, [0.0])
