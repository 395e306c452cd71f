"""A study folder that an older version left behind, killed in its tenth probe, is gone on with.

`interrupted/` holds it, the grid that it ran on, and the trials.csv that the older version itself
ended with when it went on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.result.files import MANIFEST
from tests.support.programs import TESTS

KEPT = 9
"""Trials that were told before the interruption."""
LEFT = TESTS / "study" / "interrupted"


def test_its_trials_are_kept_and_it_comes_to_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(LEFT, tmp_path, dirs_exist_ok=True)
    manifest = tmp_path / "study" / MANIFEST
    manifest.write_text(manifest.read_text().replace("FOLDER", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "study"]) == ExitCode.FOUND
    assert "resumed after 1:44: trials 9, finals 0" in capsys.readouterr().out
    then, now = (pd.read_csv(path) for path in (tmp_path / "ended.csv", "study/trials.csv"))
    # What comes after the interruption is up to the version that goes on.
    then, now = (table.head(KEPT)[then.columns] for table in (then, now))  # there are more now
    predicted = [name for name in then.columns if name.startswith("predicted")]
    pd.testing.assert_frame_equal(now.drop(columns=predicted), then.drop(columns=predicted))
    # Sums of floats may be taken in another order.
    pd.testing.assert_frame_equal(now[predicted], then[predicted], rtol=1e-6)
