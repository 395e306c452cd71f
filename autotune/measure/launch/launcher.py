"""What starts agents on the nodes of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.measure.launch.address import address_of, address_towards
from autotune.measure.launch.client import Client, end


@dataclass(frozen=True)
class LaunchRequest:
    """What the user says of a launcher."""

    argument: str = ""
    """What follows its name."""
    nodes: int | None = None
    """None for all that there are."""
    interface: str | None = None
    """This host's, that nodes reach it by."""
    note: str = ""
    """Why it was chosen, where the user did not."""


class Launcher:
    """It starts one agent on each node, and has no more to do with what they do."""

    name: str
    slots: Mapping[str, int] = {}
    """Ranks that a node takes, by its name; empty where only agents can tell."""
    names: tuple[str, ...] = ()
    """Of the nodes, where they are known; else empty."""
    notes: tuple[str, ...] = ()
    """What to tell the user of it, before anything starts."""

    def __init__(self, nodes: int, interface: str | None) -> None:
        """It starts `nodes` agents, which reach this host by its `interface`; None for any."""
        self.nodes = nodes
        self._interface = interface
        self._clients: dict[str, Client] = {}
        """The processes that run agents, by their nodes; of one for all nodes, by no name."""

    def address(self) -> str:
        """Of this host, as the nodes reach it.

        Raises:
            UsageError: that cannot be told.
        """
        if self._interface is not None:
            return address_of(self._interface)
        return address_towards(self._hosts(), self.name)

    def _hosts(self) -> Iterable[str]:
        """Addresses of the nodes."""
        raise NotImplementedError

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        """Have agents dial `driver`, which is HOST:PORT; lines to tell the user.

        They read the one line `key`; `key_file` has it, too, for those who start agents by hand.
        What agents print goes into files in `logs`.
        """
        raise NotImplementedError

    def poll(self) -> list[str]:
        """What ended since this was last asked, a line each that names the node."""
        return []

    def last_line(self) -> str:
        """What the engine printed last, for who waits in vain; empty where it has said nothing."""
        said = ((node, client.last_line()) for node, client in self._clients.items())
        return next((f"{node}: {line}" if node else line for node, line in said if line), "")

    def close(self) -> None:
        """End what it started, here and on the nodes. May be called twice, or without a start."""
        end(self._clients.values())
