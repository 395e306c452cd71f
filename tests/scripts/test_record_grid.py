"""Recording a grid: what is still to measure, continuing, and a real recording."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.runner import Result
from autotune.space.outcome import Verdict
from tests.support import recorded, scripts
from tests.support.records import space
from tests.support.scripted import ok

pytestmark = pytest.mark.slow

record_grid = scripts.load("record_grid")
called = scripts.load("shared").called
SPACE = space(micro_batch=(1, 2, 4))
HEADER = recorded.header()


def grid_file(path: Path, header: dict[str, Any] = HEADER, repeats: int = 2) -> Any:
    return record_grid.GridFile(path, header, SPACE, repeats)


def test_a_pass_has_each_candidate_once_in_groups_of_one_build(tmp_path: Path) -> None:
    groups = grid_file(tmp_path / "g.csv").next_pass(random.Random(0))
    assert Counter(c for group in groups for c in group) == Counter(SPACE.candidates)
    assert all(len({c.build for c in group}) == 1 for group in groups)
    assert max(map(len, groups)) <= record_grid.GROUP_CANDIDATES


def test_the_order_is_random_but_follows_the_seed(tmp_path: Path) -> None:
    made = grid_file(tmp_path / "g.csv")
    assert made.next_pass(random.Random(1)) == made.next_pass(random.Random(1))
    assert made.next_pass(random.Random(1)) != made.next_pass(random.Random(2))


def test_what_was_measured_least_often_comes_next(tmp_path: Path) -> None:
    made = grid_file(tmp_path / "g.csv")
    first, *rest = SPACE.candidates
    made.add(first, ok(0.1))
    assert {c for group in made.next_pass(random.Random(0)) for c in group} == set(rest)
    assert made.missing == 2 * len(SPACE.candidates) - 1


def test_an_interrupted_recording_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    made = grid_file(path)
    for candidate in SPACE.candidates[:3]:
        made.add(candidate, ok(0.1))
    path.write_bytes(path.read_bytes()[:-20])  # the last line is torn
    again = grid_file(path)
    assert again.missing == made.missing + 1
    again.add(SPACE.candidates[2], ok(0.2))
    assert [row.candidate for row in grid.read(path).rows] == list(SPACE.candidates[:3])


def test_a_failed_probe_is_recorded_with_its_verdict(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    grid_file(path).add(SPACE.candidates[0], Result(verdict=Verdict.OOM, reason="ran out\nof it"))
    (row,) = grid.read(path).rows
    assert (row.verdict, row.reason, row.report) == (Verdict.OOM, "ran out of it", None)


@pytest.mark.parametrize("name", ["kind", "space", "fingerprint", "settings"])
def test_another_recording_is_not_continued(tmp_path: Path, name: str) -> None:
    path = tmp_path / "g.csv"
    grid_file(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"records another {name}"):
        grid_file(path, HEADER | {name: "other"})
    assert path.read_bytes() == before


def test_recordings_can_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.csv"
    flags = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2"]
    flags += ["--gpt", "vocab_size=256", "--checkpointing", "none"]
    asked = [str(path), "--limit", "0.2s", "--calm", "100%"]
    assert called(record_grid.main, [*asked, "--repeats", "1", "--", *flags]) == 0
    assert called(record_grid.main, [*asked, "--repeats", "2", "--", *flags]) == 0
    found = grid.read(path)
    assert Counter(row.candidate.micro_batch for row in found.rows) == {1: 2, 2: 2}
    assert found.trace is not None
    assert all(row.report is not None and row.report.step_s for row in found.rows)
    assert sum(row.group_start_s > 0 for row in found.rows) == 2
    capsys.readouterr()
    assert called(record_grid.main, [*asked, "--", *flags, "--gpt", "width=128"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_wrong_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--depth", "x"], ["--depht", "2"], ["--depth", "2", "--depth", "4"]):
        assert called(record_grid.main, [str(tmp_path / "g.csv"), "--", *flags]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_recording_is_no_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = recorded.write(tmp_path / "g.csv")
    asked = [str(tmp_path / "h.csv"), "--", "--device", f"replay:{source}"]
    assert called(record_grid.main, asked) == 2
    assert "use cpu or cuda" in capsys.readouterr().err


def test_a_mix_of_lengths_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(record_grid.main, [str(tmp_path / "g.csv"), "--", "--length-mix", "a.csv"]) == 2
    assert "name several by --seq-len" in capsys.readouterr().err
