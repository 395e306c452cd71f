"""Many failures in a row; scripts/bench/faults.py has five hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.many import descend

pytestmark = pytest.mark.slow


def test_trials_in_a_row_that_all_run_out_end_with_what_fits(tmp_path: Path) -> None:
    assert descend(tmp_path, side=5)["oom"] == 5**3 - 1
