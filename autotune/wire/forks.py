"""Messages between the study and a fork server, whose children become ranks."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.wire.dial import Dial


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Study to a fork server: fork a rank."""

    dial: Dial
    log: str
    """The file to which the rank's output is appended."""
    environment: dict[str, str]


@dataclass(frozen=True)
class Forkable:
    """Fork server to study: its imports are done."""

    but: str
    """Why it cannot fork ranks; empty if it can."""


@dataclass(frozen=True)
class Forked:
    """Fork server to study: the rank is a child of the study now."""

    pid: int
