"""How a process reaches its study."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dial:
    """How a rank reaches its study; the first line on the rank's stdin. The key is hex."""

    host: str
    port: int
    key: str
    rank: int
    child: bool
    """The rank is a child process of who starts it and shall not outlive that."""
    token: str = ""
    """What it says in its `Hello`: process ids are the same on many hosts."""
    certificate: str = ""
    """Of the study, in PEM, where they may be on different hosts; empty for no TLS."""
