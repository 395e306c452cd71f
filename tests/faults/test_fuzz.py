"""A few cases for each parser; scripts/bench/faults.py tries many."""

from __future__ import annotations

import pytest

from tests.support.fuzz import PARSERS, fuzz

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PARSERS)
def test_any_input_is_taken_or_refused_in_one_line(name: str) -> None:
    assert fuzz(name, 200) >= 1
