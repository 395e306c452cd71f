"""Messages between the study and a fork server, whose children become ranks."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.wire.dial import Dial


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Study to a fork server: become a rank, which then speaks for itself."""

    dial: Dial
    log: str
    """What the rank prints is appended to this file."""
    environment: dict[str, str]
    """All of its variables."""


@dataclass(frozen=True)
class Forkable:
    """Fork server to study: what it imports is imported."""

    but: str
    """Why no rank can be forked all the same; empty where one can."""


@dataclass(frozen=True)
class Forked:
    """Fork server to study: the rank is a child of the study now."""

    pid: int
