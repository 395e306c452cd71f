"""The base of launchers, which start agents on the nodes of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.measure.launch.address import address_of, address_towards
from autotune.measure.launch.client import Client, end


@dataclass(frozen=True)
class LaunchRequest:
    """The user's choices for a launcher."""

    argument: str = ""
    """The text after its name."""
    nodes: int | None = None
    """None for all nodes."""
    interface: str | None = None
    """The interface by which nodes reach this host."""
    note: str = ""
    """Why it was chosen, if the user did not."""


class Launcher:
    """Starts one agent on each node, and leaves the rest to them."""

    name: str
    slots: Mapping[str, int] = {}
    """Number of ranks by node; empty if only agents can tell."""
    names: tuple[str, ...] = ()
    """Names of the nodes; empty if unknown."""
    notes: tuple[str, ...] = ()
    """Notes to the user, before anything starts."""

    def __init__(self, nodes: int, interface: str | None) -> None:
        """Start `nodes` agents, which reach this host by its `interface`; None for any."""
        self.nodes = nodes
        self._interface = interface
        self._clients: dict[str, Client] = {}
        """The processes that run agents, by node; one for all nodes has the key ""."""

    def address(self) -> str:
        """The address by which nodes reach this host. Raises UsageError if it is unknown."""
        if self._interface is not None:
            return address_of(self._interface)
        return address_towards(self._hosts(), self.name)

    def _hosts(self) -> Iterable[str]:
        """Addresses of the nodes."""
        raise NotImplementedError

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        """Have agents dial `driver`, which is HOST:PORT; returns lines to tell the user.

        They read the one line `key`; `key_file` has it, too, for users who start agents by hand.
        The output of agents goes into files in `logs`.
        """
        raise NotImplementedError

    def poll(self) -> list[str]:
        """A line for each agent that ended since the last call; it names the node."""
        return []

    def last_line(self) -> str:
        """The last line that the launcher's program printed; empty if there is none."""
        said = ((node, client.last_line()) for node, client in self._clients.items())
        return next((f"{node}: {line}" if node else line for node, line in said if line), "")

    def close(self) -> None:
        """End all that it started, here and on the nodes. May be called twice."""
        end(self._clients.values())
