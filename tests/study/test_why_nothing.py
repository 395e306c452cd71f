"""What is said of a study that found nothing."""

from __future__ import annotations

import pytest

from autotune.folder.ending import Ending
from autotune.outcome import Outcome, Record, Verdict
from autotune.study.why_nothing import why_nothing
from autotune.units import parse_duration_s
from tests.support.records import space


def test_what_was_seen_meanwhile_is_said() -> None:
    reason = "the budget ended during this probe; it imported torch, and made no backward pass"
    outcome = Outcome(verdict=Verdict.SKIPPED, started_s=0.0, reason=reason)
    records = [Record(0, "search", space().candidates[0], outcome)]
    ended = why_nothing(records, space(), None, 60.0)
    assert ended.message.endswith("--budget 2m (it imported torch, and made no backward pass)")


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
