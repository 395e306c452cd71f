"""Cases of `scripts/test`, and those that only `scripts/test --all` runs."""

from typing import Any

import pytest


def campaign(*cases: Any) -> list[Any]:
    """Cases that test the same as others, in another combination. A tuple is one case."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.campaign)
        for case in cases
    ]
