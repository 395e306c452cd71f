"""The address and key of a study for its processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dial:
    """Address and key of the study: the first line on a rank's stdin. The key is hex."""

    host: str
    port: int
    key: str
    rank: int
    child: bool
    """Whether the rank is a child process of its starter, and must not outlive it."""
    token: str = ""
    """Identifies it in its `Hello`: process ids are not unique among hosts."""
    certificate: str = ""
    """The study's certificate in PEM, if they may be on different hosts; empty for no TLS."""
