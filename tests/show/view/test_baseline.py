"""What the winner is compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.show.view.baseline import baseline, compared
from autotune.show.view.study import Shown, read
from autotune.space.mix import LengthMix
from tests.support.shown import Row, change_json, change_rows, failed, folder

BEST = 145445257746.37454
"""Model FLOP/s of the sample's winner."""


def with_rows(at: Path, *more: Row) -> Shown:
    """The sample, its winner's cell tried at these alone beside the winner."""
    path = folder(at)

    def change(rows: list[Row]) -> list[Row]:
        winner = next(row for row in rows if row["kind"] == "final" and row["micro_batch"] == "12")
        return [winner, *({**winner, "kind": "search", **row} for row in more)]

    change_rows(path, change)
    return read(path)


def timed(micro_batch: int, flops_per_s: float) -> Row:
    return {"micro_batch": str(micro_batch), "model_flops_per_s": str(flops_per_s)}


NEAREST = "Nearest to a framework's defaults"
MISFIT = {"micro_batch": "8", "tokens_per_s": "1", "model_flops_per_s": "1"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([timed(8, BEST / 2), timed(4, BEST / 3)],
         "A framework's defaults (micro 8) → best: 2.00 times the model FLOP/s."),
        ([timed(8, BEST * 1.001)], "A framework's defaults (micro 8) → best: 1.00 times the model"
         " FLOP/s; the intervals overlap."),
        ([timed(7, BEST / 2), timed(2, BEST / 3)],
         f"{NEAREST} (micro 7) → best: 2.00 times the model FLOP/s."),
        ([failed(MISFIT, "oom")], "A framework's defaults (micro 8): did not fit."),
        ([failed(MISFIT, "skipped", witness="d4")],
         "A framework's defaults (micro 8): does not fit."),
        ([], ""),  # the winner is nearest itself
    ],
    ids=["measured", "overlap", "nearest", "did not fit", "has a witness", "the winner"],
)  # fmt: skip
def test_the_winner_is_compared_with_a_framework_s_defaults(
    tmp_path: Path, rows: list[Row], said: str
) -> None:
    assert compared(with_rows(tmp_path, *rows)) == said


def test_what_was_not_searched_as_frameworks_have_it_is_as_in_the_winner(tmp_path: Path) -> None:
    path = with_rows(
        tmp_path,
        timed(8, BEST / 2) | {"attention": "sdpa"},
        timed(8, BEST / 4) | {"attention": "eager"},
    ).folder.path
    space = read(path).manifest.space
    axes = space["axes"] | {"attention": ["eager", "sdpa"]}
    change_json(path / "manifest.json", space=space | {"axes": axes})
    config = json.loads((path / "best.json").read_text("utf-8"))["config"]
    change_json(path / "best.json", config=config | {"attention": "sdpa"})
    assert compared(read(path)) == (
        "Nearest to a framework's defaults (micro 8, attention sdpa) → best:"
        " 2.00 times the model FLOP/s."
    )


def test_the_longest_samples_alone_are_not_compared_with_a_mix_of_lengths(tmp_path: Path) -> None:
    path = with_rows(tmp_path, timed(8, BEST / 2)).folder.path
    mix = LengthMix.of("lengths.csv", {64: 3, 128: 1})
    study = read(path)
    workload = replace(study.workload, length_mix=mix)
    assert baseline(study) is not None
    assert baseline(replace(study, workload=workload)).micro_batch == 12  # type: ignore[union-attr]


def test_what_the_budget_left_out_says_nothing(tmp_path: Path) -> None:
    left_out = failed({"micro_batch": "8", "model_flops_per_s": "1", "witness": ""}, "skipped")
    found = baseline(with_rows(tmp_path, left_out, {"micro_batch": "6"}))
    assert found is not None
    assert found.micro_batch == 6
