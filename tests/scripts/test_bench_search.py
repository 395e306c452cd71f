"""What the benchmark of the search makes of a recorded grid, and the rules it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support import recorded, scripts
from support.records import MIB, space

from autotune.space.space import Candidate

bench = scripts.load("bench_search")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
LADDER = [Candidate(4, 128, size) for size in SIZES]


def walk(rule: Generator[Candidate, float | None, None], most: int) -> list[int]:
    """Micro-batches that `rule` tries where those up to `most` fit, at their own speed."""
    tried, value = [], None
    try:
        candidate = next(rule)
        while True:
            tried.append(candidate.micro_batch)
            value = float(candidate.micro_batch) if candidate.micro_batch <= most else None
            candidate = rule.send(value)
    except StopIteration:
        return tried


def test_accelerate_goes_down_by_a_tenth_until_it_fits() -> None:
    assert walk(bench.accelerate(LADDER), most=8) == [16, 12, 8]
    assert walk(bench.accelerate(LADDER), most=0) == [16, 12, 8, 6, 4, 3, 2, 1]


def test_power_doubles_from_2_until_it_does_not_fit() -> None:
    assert walk(bench.power(LADDER), most=6) == [2, 4, 8]
    assert walk(bench.power(LADDER), most=99) == [2, 4, 8, 16]


def test_bisect_looks_between_the_last_two_doublings() -> None:
    assert walk(bench.bisect(LADDER), most=6) == [2, 4, 8, 6]
    assert walk(bench.bisect(LADDER), most=12) == [2, 4, 8, 16, 12]


def test_deepspeed_tries_both_ends_then_between_and_then_the_next_stage() -> None:
    stages = [[Candidate(4, 128, size, stage) for size in SIZES] for stage in (0, 1)]
    assert walk(bench.deepspeed(stages), most=16)[:4] == [1, 16, 3, 6]
    # The next stage begins at the largest that the one before could hold.
    assert walk(bench.deepspeed(stages), most=16)[-1] == 16


def test_deepspeed_stops_where_a_stage_cannot_hold_what_the_last_one_could() -> None:
    stages = [[Candidate(4, 128, size, stage) for size in SIZES] for stage in (0, 1, 2)]
    rule = bench.deepspeed(stages)
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
def grid(tmp_path: Path) -> Callable[[float], object]:
    path = recorded.write(tmp_path / "g.csv")
    return lambda ceiling: bench.Grid(path, ceiling)


def test_the_truth_under_a_ceiling_is_the_fastest_that_fits(
    grid: Callable[[float], object],
) -> None:
    whole, half = grid(1.0), grid(0.5)
    largest = max(space().candidates, key=lambda c: c.tokens).tokens * MIB
    assert all(c.tokens * MIB <= largest / 2 for c in half.fitting)
    assert len(half.fitting) < len(whole.fitting) == len(space().candidates)
    assert half.best < whole.best
    assert half.regret(None) == 1.0
    assert half.regret(max(half.fitting, key=lambda c: half.values[c])) == 0.0


def test_without_noise_the_oracle_has_no_regret(grid: Callable[[float], object]) -> None:
    assert grid(0.7).oracle(seed=1) == 0.0


@pytest.mark.parametrize("method", ["frontier", "tpe", "random", "grid", *bench.RULES])
def test_every_method_finds_something_and_its_clock_goes_forward(
    grid: Callable[[float], object], method: str
) -> None:
    make = bench.rule_trace if method in bench.RULES else bench.sampler_trace
    found = grid(0.7)
    trace = make(found, method, 0, 12)
    assert len(trace) <= 12
    assert trace[-1].found in found.fitting
    times = [point.elapsed_s for point in trace]
    assert times == sorted(times)
    assert times[0] > 0


def test_grid_search_in_order_needs_every_probe(grid: Callable[[float], object]) -> None:
    found = grid(1.0)
    trace = bench.sampler_trace(found, "grid", 0, len(space().candidates))
    assert found.regret(trace[-1].found) == 0.0
    assert found.regret(trace[0].found) > 0.2


def test_the_tables_say_what_was_missed(tmp_path: Path) -> None:
    def made(method: str, regret: float) -> object:
        return bench.Run(
            method,
            dict.fromkeys(bench.PROBES, regret),
            dict.fromkeys(bench.MINUTES, regret),
            0.2,
            9,
            (0.01, 0.03, 0.02),
        )

    runs = [made("frontier", 0.10), made("random", 0.03)]
    said = "\n".join(bench.promises(runs, [0.0]))
    assert "| median regret after 6 probes | 5.0% | 10.0% | no |" in said
    assert "| probes lost to memory | 10.0% | 20.0% | no |" in said
    assert "random after 4" in said
    table = "\n".join(bench.table(runs, [0.01, 0.02]))
    assert "| after 12 probes | 10.0 / 10.0 | 3.0 / 3.0 |" in table
    assert "predicts peaks to 2.0% (median)" in table
