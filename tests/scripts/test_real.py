"""The comparison of an emulated card with a recording of a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.space.outcome import Verdict
from tests.support.programs import ROOT
from tests.support.scripts import load

real: Any = load("real")
GRIDS = ROOT / "results" / "grids"
H100 = GRIDS / "h100-1-rank.csv"


def test_a_recording_is_taken_to_the_card_of_its_device() -> None:
    recorded = grid.read(H100)
    assert real.card_of(recorded.device, H100) == "H100"
    assert real.flags(recorded)[:4] == ["--depth", "12,20", "--seq-len", "1024,2048"]
    with pytest.raises(UsageError, match="which no card emulates"):
        real.card_of(grid.read(GRIDS / "cpu-1-rank.csv").device, H100)


def test_peaks_times_and_verdicts_are_compared() -> None:
    measured, lost = (
        next(row for row in grid.read(H100).rows if row.verdict is verdict)
        for verdict in (Verdict.OK, Verdict.OOM)
    )
    assert measured.report is not None
    peaks = replace(
        measured.report.peaks, device_bytes=int(1.5 * measured.report.peaks.device_bytes)
    )
    report = replace(measured.report, peaks=peaks, step_s=[2 * s for s in measured.report.step_s])
    other = replace(measured, report=report)
    found = {measured.candidate: other, lost.candidate: replace(lost, verdict=Verdict.OK)}
    second = replace(measured, candidate=replace(measured.candidate, micro_batch=8))
    found[second.candidate] = replace(second, report=second.report)
    text = "\n".join(real.compared([measured, lost, second], found))
    assert "2 of 3 the same" in text
    assert "Peak, allocated: off by 0.0%" in text
    assert "| +50.0% |" in text
    assert "| +100.0% |" in text
    assert f"{lost.candidate.key} | oom | ok" in text
    assert "Kendall's tau of the speeds 1.00" in text


def test_kendalls_tau_counts_pairs() -> None:
    assert real.tau([(1, 1), (2, 2), (3, 3)]) == 1
    assert real.tau([(1, 3), (2, 2), (3, 1)]) == -1


def test_what_is_no_recording_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real.main(tmp_path / "none.csv") == 2
    assert capsys.readouterr().err.startswith("real: ")
