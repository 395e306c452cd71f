"""What is said of a study that found nothing."""

from __future__ import annotations

import pytest

from autotune.folder.ending import Ending
from autotune.study.why_nothing import why_nothing
from autotune.units import parse_duration_s
from tests.support.records import space


@pytest.mark.parametrize(
    ("budget_s", "advice"), [(20, "2m"), (60, "2m"), (61, "3m"), (180, "6m"), (7200, "240m")]
)
def test_a_study_that_measured_nothing_is_told_of_a_budget_that_is_larger_than_its_own(
    budget_s: float, advice: str
) -> None:
    ended = why_nothing([], space(), None, budget_s)
    assert ended.code is Ending.NO_MEASUREMENT
    assert ended.message.endswith(f"try --budget {advice}")
    assert parse_duration_s(advice, "--budget") >= 2 * budget_s
