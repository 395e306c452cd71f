"""Studies side by side."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.show.view.compare import (
    MEANS,
    compare_page,
    differences,
    frontiers,
    print_compared,
    winners,
)
from autotune.show.view.study import Shown, read
from tests.support.shown import HOSTILE, change_json, folder


def with_measured(at: Path, name: str, factor: float, width: float = 0.02, **best: Any) -> Shown:
    """The sample, had its winner been so many times as fast, and its steps so spread."""
    path = folder(at, name)
    body = json.loads((path / "best.json").read_text("utf-8"))
    measured = body["measured"]
    for rate in ("tokens_per_s", "samples_per_s", "model_flops_per_s"):
        measured[rate] *= factor
    median = measured["step_s"]["median"] / factor
    measured["step_s"] |= {
        "median": median, "low": median * (1 - width), "high": median * (1 + width),
    }  # fmt: skip
    change_json(path / "best.json", measured=measured, **best)
    return read(path)


@pytest.fixture
def first(tmp_path: Path) -> Shown:
    return with_measured(tmp_path, "first", 1.0)


def of(fact: str, *studies: Shown) -> list[str]:
    return dict(winners(studies))[fact]


def test_what_is_faster_beyond_the_noise_is_said_in_percent(first: Shown, tmp_path: Path) -> None:
    faster = with_measured(tmp_path, "faster", 1.2)
    slower = with_measured(tmp_path, "slower", 0.9)
    assert of("against first", first, faster, slower) == ["", "+20.0%", "-10.0%"]


def test_ranks_on_several_nodes_are_said_to_be(first: Shown, tmp_path: Path) -> None:
    config = json.loads((first.folder.path / "best.json").read_text("utf-8"))["config"]
    batch = {name: 2 * config[name] for name in ("global_batch_samples", "global_batch_tokens")}
    two = with_measured(
        tmp_path, "two", 1.0, config=config | batch | {"world_size": 2, "nodes": 2}
    )
    assert of("ranks", first, two) == ["1", "2 on 2 nodes"]


def test_what_is_within_the_noise_is_said_to_be(first: Shown, tmp_path: Path) -> None:
    near = with_measured(tmp_path, "near", 1.03)
    spread = with_measured(tmp_path, "spread", 1.2, width=0.3)
    assert of("against first", first, near, spread) == [
        "", "within the noise (+3.0%)", "within the noise (+20.0%)",
    ]  # fmt: skip


def test_noise_is_explained_where_something_is_within_it(first: Shown, tmp_path: Path) -> None:
    near, faster = with_measured(tmp_path, "near", 1.03), with_measured(tmp_path, "faster", 1.2)
    assert MEANS in text_of([first, near])
    assert MEANS not in text_of([first, faster])
    assert MEANS in compare_page([first, near]).replace("&#34;", '"')
    assert "intervals of the two" not in compare_page([first, faster])


def text_of(studies: list[Shown]) -> str:
    screen = Console(file=io.StringIO(), width=200)
    print_compared(screen, studies)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_what_differs_is_named_and_nothing_else(first: Shown, tmp_path: Path) -> None:
    path = folder(tmp_path, "other")
    fingerprint = read(path).manifest.fingerprint
    software = fingerprint["software"] | {"torch": "9.9"}
    options = read(path).manifest.options | {"ceiling": 0.6}
    change_json(
        path / "manifest.json", fingerprint=fingerprint | {"software": software}, options=options
    )
    found = dict(differences([first, read(path)]))
    assert found.pop("software.torch")[1] == "9.9"
    assert found.pop("ceiling") == ["0.8", "0.6"]
    assert found == {}


def test_a_study_without_a_result_stands_beside_others(first: Shown, tmp_path: Path) -> None:
    path = folder(tmp_path, "none")
    (path / "best.json").unlink()
    none = read(path)
    assert of("micro", first, none)[1] == ""
    assert of("against none", none, first) == ["", ""]
    assert of("no result", first, none) == ["", "the study was interrupted before anything fitted"]
    assert "none" in compare_page([first, none])


def test_a_curve_has_the_best_of_every_micro_batch_of_each_study(first: Shown) -> None:
    spec = frontiers([first, first])
    assert spec is not None
    rows = spec["data"]["values"]
    cell = first.measured[(first.measured["depth"] == 4) & (first.measured["seq_len"] == 128)]
    assert {row["micro_batch"] for row in rows} == set(cell["micro_batch"])
    for row in rows:  # of one build here
        rounds = cell.loc[cell["micro_batch"] == row["micro_batch"], "value"]
        assert row["value"] == pytest.approx(rounds.median(), rel=1e-5)


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, two = (with_measured(tmp_path / name, "study", 1.0) for name in ("a", "b"))
    assert str(one.folder.path) in compare_page([one, two])


@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_tables_fit_the_terminal(first: Shown, tmp_path: Path, width: int) -> None:
    stream = io.StringIO()
    other = with_measured(tmp_path, "other-with-a-rather-long-name", 1.2)
    print_compared(Console(file=stream, width=width), [first, other])
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "+20.0%" in text


def test_hostile_names_are_text(first: Shown, tmp_path: Path) -> None:
    path = folder(tmp_path, "a<script>alert(1)<b>")
    options = read(path).manifest.options | {"model": HOSTILE}
    change_json(path / "manifest.json", options=options)
    text = compare_page([first, read(path)])
    assert "<script>alert(1)" not in text
    assert HOSTILE not in text
