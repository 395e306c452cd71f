"""What a row of the tables of wordings is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an error is of."""

    DEVICE = "device memory"
    HOST = "host memory"
    SHARED = "shared memory"
    KILLED = "killed"
    """By SIGKILL, which the kernel sends for memory, and others for their own reasons."""
    BUS = "bus error"
    """SIGBUS, mostly of a full /dev/shm."""
    BATCH = "batch sizes"
    DISK = "disk"
    FILES = "open files"
    LIBRARY = "library start"
    """cuBLAS or cuDNN could not start, often for want of memory."""
    TIMEOUT = "collective timeout"
    ASSERT = "device fault"
    SHAPE = "shapes"
    KERNEL = "kernel resources"
    """On-chip memory of one kernel; how much memory the device has does not matter."""
    ENDED = "ended by the launcher"
    SCHEDULED = "ended by the scheduler"
    WARNING = "warning"
    LISTING = "listing"
    """Nothing failed: of nvidia-smi, top and the like, which show how a machine is used."""
    OTHER = "other error"

    @property
    def is_oom(self) -> bool:
        """Whether memory is, or for KILLED and BUS may be, what ran out."""
        return self in (Kind.DEVICE, Kind.HOST, Kind.SHARED, Kind.KILLED, Kind.BUS)


@dataclass(frozen=True, kw_only=True)
class Wording:
    """One way to say it."""

    name: str
    kind: Kind
    needles: tuple[str, ...]
    """One is in every line that `pattern` matches; looked for first, since that is fast."""
    pattern: re.Pattern[str]
    """Its groups `asked`, `total`, `free`, `rank`, `device` and `pid` go to the event."""
    source: str


SIZE = r"\d[\d,]{0,30}+(?:\.\d{0,30}+)?\s*+(?:[Bb]ytes|[KMGTkB]i?B?)\b"
"""Bounded, like all that a searched pattern may begin with: a run of digits takes linear time."""
RAISED = (
    r"(?:^|what\(\):\s*"
    r"|(?:Error|Exception|ERROR|error|FATAL|WARN|failed)\]?:?\s+(?:.{0,60}:\s)?"
    r"|(?:with|get|got|getting|error):? [\"'`“])"
)
"""What stands before a message that is meant: the class of an exception, a quote, or nothing."""


def row(
    name: str, kind: Kind, needles: str | tuple[str, ...], pattern: str, source: str
) -> Wording:
    """A `Wording`; one needle may stand alone."""
    return Wording(
        name=name,
        kind=kind,
        needles=(needles,) if isinstance(needles, str) else needles,
        pattern=re.compile(pattern),
        source=source,
    )
