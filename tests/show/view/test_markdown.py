"""The summary as Markdown."""

from __future__ import annotations

from pathlib import Path

from autotune.show.report.cells import evidence
from autotune.show.view.markdown import markdown
from autotune.show.view.page import page
from autotune.show.view.study import read
from tests.support.shown import HOSTILE, Row, change_json, change_rows, failed


def test_each_cell_has_a_row_and_the_best_is_bold(path: Path) -> None:
    study = read(path)
    text = markdown(study)
    assert study.best is not None
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(study.best.cells)
    (best,) = [row for row in rows if "**" in row]
    assert "micro\\_batch 12" in best
    assert "145G" in best
    said = [evidence(cell) for cell in study.best.cells]
    assert sorted(row.split(" | ")[-1].strip(" |") for row in rows[1:]) == sorted(said)
    assert "stopped early" in said
    assert "AMD EPYC, 2 cores" in text


def test_final_rounds_are_those_that_ran(path: Path) -> None:
    ran = int((read(path).trials["kind"] == "final").sum())
    assert f"final rounds: {ran}." in markdown(read(path))

    def skip_one(rows: list[Row]) -> list[Row]:
        return [*rows[:-1], failed(rows[-1], "skipped")]

    change_rows(path, skip_one)
    study = read(path)
    assert f"final rounds: {ran - 1}." in markdown(study)
    assert f"final rounds: {ran - 1}<" in page(study)


def test_a_study_without_a_result_says_so(path: Path) -> None:
    (path / "best.json").unlink()
    change_rows(path, lambda rows: [failed(row, "oom") for row in rows])
    text = markdown(read(path))
    assert "No result: the study was interrupted before anything fitted" in text
    assert "10 oom" in text


def test_what_is_hostile_is_no_markup(path: Path) -> None:
    fingerprint = read(path).manifest.fingerprint
    devices = fingerprint["devices"] | {"name": f"{HOSTILE}\n| a | b |"}
    change_json(path / "manifest.json", fingerprint=fingerprint | {"devices": devices})
    text = markdown(read(path))
    assert "\\| a \\| b \\|" in text
    assert "<img" not in text.replace("\\<img", "")
    assert "\n| a |" not in text
