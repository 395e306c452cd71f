"""Fixtures of the fault suite: whole studies, and that nothing is left of any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import HostileStudy

Make = Callable[..., HostileStudy]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes studies of a kind; each is looked over for what it left when the test has passed."""
    studies: list[HostileStudy] = []

    def make(kind: type[HostileStudy], *arguments: str, **how: Any) -> HostileStudy:
        folder = how.pop("folder", tmp_path / f"{len(studies)}")
        studies.append(kind(folder, *arguments, **how))
        return studies[-1]

    try:
        yield make
        for study in studies:
            assert study.residue() == []
    finally:
        for study in studies:
            study.end()
