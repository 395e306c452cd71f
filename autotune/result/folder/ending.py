"""The end of a study, as its folder records it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a study ended."""

    FOUND = "found"
    INTERNAL = "internal"
    """Its folder could not be written any more."""
    NOTHING_FITS = "nothing_fits"
    STOPPED = "stopped"
    NO_MEASUREMENT = "no_measurement"

    @property
    def is_final(self) -> bool:
        """Whether the study did all that its budget allowed; others can go on."""
        return self in (Ending.FOUND, Ending.NOTHING_FITS)


@dataclass(frozen=True)
class StudyEnd:
    code: Ending
    message: str = ""
    """One line for the user; empty after a result."""
