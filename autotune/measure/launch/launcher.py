"""What starts agents on the nodes of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Launcher(Protocol):
    """It starts one agent on each node, and has no more to do with what they do."""

    @property
    def nodes(self) -> int:
        """How many agents it starts."""

    @property
    def slots(self) -> Mapping[str, int]:
        """Ranks that a node takes, by its name; empty where only agents can tell."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the nodes, where they are known; else empty."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user of it, before anything starts."""

    def address(self) -> str:
        """Of this host, as the nodes reach it.

        Raises:
            UsageError: that cannot be told.
        """

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        """Have agents dial `driver`, which is HOST:PORT; lines to tell the user.

        They read the one line `key`; `key_file` has it, too, for those who start agents by hand.
        What agents print goes into files in `logs`.
        """

    def poll(self) -> list[str]:
        """What ended since this was last asked, a line each that names the node."""

    def last_line(self) -> str:
        """What the engine printed last, for who waits in vain; empty where it has said nothing."""

    def close(self) -> None:
        """End what it started, here and on the nodes. May be called twice, or without a start."""


@dataclass(frozen=True)
class LaunchRequest:
    """What the user says of it."""

    argument: str = ""
    """What follows its name."""
    nodes: int | None = None
    """None for all that there are."""
    interface: str | None = None
    """This host's, that nodes reach it by."""
    note: str = ""
    """Why it was chosen, where the user did not."""
