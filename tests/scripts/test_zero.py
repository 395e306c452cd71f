"""What scripts/bench/zero.py makes of what ranks report; nothing is run here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from autotune.space.candidate import Candidate
from tests.support.scripts import load

bench: Any = load("zero")
DEPTH, WIDTH = 2, 64


@pytest.mark.parametrize(
    ("stage", "offload", "ranks", "bytes_a_parameter"),
    [
        (0, "none", 1, 12),
        (0, "none", 4, 16),
        (1, "none", 4, 4 + 12 / 4),
        (1, "optimizer", 4, 4 + 16 / 4),
        (2, "none", 4, 4 + 12 / 4),
        (2, "optimizer", 4, 4 + 16 / 4),
        (3, "none", 4, 20 / 4),
        (3, "all", 4, 20 / 4),
    ],
)
def test_the_theory_counts_gradients_only_where_they_are_kept_between_steps(
    stage: int, offload: str, ranks: int, bytes_a_parameter: float
) -> None:
    work = bench.workload(WIDTH, ranks)
    candidate = Candidate(
        depth=DEPTH, seq_len=16, micro_batch=1, zero_stage=stage, offload=offload
    )
    parameters = work.shape(DEPTH).parameters
    expected = bytes_a_parameter * parameters
    assert bench.static_theory_bytes(work, candidate) == pytest.approx(expected)


def row(static_bytes: int, *held_bytes: float) -> object:
    causes = tuple(bench.Cause(f"cause {i}", size) for i, size in enumerate(held_bytes))
    return bench.Row(
        ranks=2,
        candidate=Candidate(depth=2, seq_len=16, micro_batch=1),
        static_bytes=static_bytes,
        theory_bytes=1e8,
        peak_bytes=2 * 10**8,
        loss=5.5,
        causes=causes,
    )


def test_a_row_within_the_tolerance_needs_no_note() -> None:
    notes: list[str] = []
    assert bench.explained(row(109_000_000, 9e6), notes) == ""
    assert notes == []


def test_a_row_names_its_causes_with_their_bytes_and_what_they_leave() -> None:
    notes = ["cause 1"]
    text = bench.explained(row(131_000_000, 2e7, 1e7), notes)
    assert text == "(2) 20.0 + (1) 10.0; +1.0% left"
    assert notes == ["cause 1", "cause 0"]


def test_a_deviation_that_its_causes_do_not_cover_is_called_unexplained() -> None:
    assert bench.explained(row(150_000_000, 1e7), []).endswith("+40.0% left, unexplained")


def test_a_failed_configuration_has_its_reason_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise bench.ProbeFailedError("out of memory")

    monkeypatch.setattr(bench, "pool", lambda *_: nullcontext())
    monkeypatch.setattr(bench, "probe", fails)
    work = bench.workload(WIDTH, 4)
    [alone] = bench.measured(None, work, DEPTH, [(3, "all")], [])
    assert alone == (4, *[""] * 7, "the control failed: out of memory")
    monkeypatch.setattr(bench, "controlled", lambda *_: None)
    text = bench.report(bench.measured(None, work, DEPTH, [(3, "all")], []), [])
    assert text.splitlines()[-1] == "| 4 | 3 | all | | | | | | out of memory |"
