"""How a search went: where it stood after each probe."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.candidate import Candidate


@dataclass(frozen=True)
class Point:
    """Where a search stood after a probe."""

    elapsed_s: float
    """Virtual."""
    found: Candidate | None
    """The incumbent."""
    lost: bool
    """The probe ran out of memory or over the ceiling."""
    error: float | None = None
    """How far off the predicted peak was, as a share, where both are known."""


Course = list[Point]
