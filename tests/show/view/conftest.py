"""The study that pages, charts and tables show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shown import folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the sample, to change."""
    return folder(tmp_path)
