"""What the winner is compared with."""

from __future__ import annotations

from pathlib import Path

from autotune.view.baseline import baseline, compared
from autotune.view.study import Shown, read
from tests.support.shown import Row, change_rows, failed, folder


def with_rows(at: Path, *more: Row) -> Shown:
    """The sample, its winner's cell tried at these alone beside the winner."""
    path = folder(at)

    def change(rows: list[Row]) -> list[Row]:
        winner = next(row for row in rows if row["kind"] == "final" and row["micro_batch"] == "12")
        return [winner, *({**winner, "kind": "search", **row} for row in more)]

    change_rows(path, change)
    return read(path)


def test_the_default_is_compared_with_where_it_was_measured(tmp_path: Path) -> None:
    study = with_rows(tmp_path, {"micro_batch": "8", "model_flops_per_s": "1e10"},
                      {"micro_batch": "4", "model_flops_per_s": "5e9"})  # fmt: skip
    assert compared(study, 2e10) == (
        "A framework's defaults (micro 8) → best: 2.00 times as fast."
    )


def test_else_the_nearest_is_and_is_said_to_be(tmp_path: Path) -> None:
    study = with_rows(tmp_path, {"micro_batch": "7", "model_flops_per_s": "1e10"},
                      {"micro_batch": "2", "model_flops_per_s": "5e9"})  # fmt: skip
    assert compared(study, 2e10).startswith("Nearest to a framework's defaults (micro 7) → best")


def test_a_default_that_does_not_fit_is_said(tmp_path: Path) -> None:
    lost = failed({"micro_batch": "8", "tokens_per_s": "1", "model_flops_per_s": "1"}, "oom")
    assert compared(with_rows(tmp_path, lost), 2e10).endswith("(micro 8): did not fit.")


def test_a_default_that_was_skipped_for_its_witness_does_not_fit(tmp_path: Path) -> None:
    lost = failed({"micro_batch": "8", "model_flops_per_s": "1"}, "skipped", witness="d4")
    assert compared(with_rows(tmp_path, lost), 2e10).endswith("(micro 8): does not fit.")


def test_what_the_budget_left_out_says_nothing(tmp_path: Path) -> None:
    left_out = failed({"micro_batch": "8", "model_flops_per_s": "1", "witness": ""}, "skipped")
    found = baseline(with_rows(tmp_path, left_out, {"micro_batch": "6"}))
    assert found is not None
    assert found.micro_batch == 6


def test_a_winner_that_is_nearest_itself_is_compared_with_nothing(tmp_path: Path) -> None:
    assert compared(with_rows(tmp_path), 2e10) == ""
