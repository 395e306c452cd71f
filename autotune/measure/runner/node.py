"""A node: one machine that ranks run on, and what the study asks of it.

`LocalNode` is the machine that this process runs on: the study's own, or that of an agent, which
offers it to a study elsewhere (`Remote`). Groups and pools know no other way to a process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.device.cpu import host_oom_kills
from autotune.device.device import Device
from autotune.measure.runner import extensions, local, network
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.process import RankProcess
from autotune.wire.agents import Task
from autotune.wire.dial import Dial

LOOPBACK = "127.0.0.1"
RECENT_S = 2.0
"""A node beats every second."""


class Node(Protocol):
    """One machine."""

    name: str
    """As people call it; empty for the study's own."""
    address: str
    """As other nodes reach it."""
    uuids: tuple[str, ...]
    """Of its devices."""
    energy_at: str
    """Where its devices' energy is counted; see `Start.energy`."""
    refreshed_s: float
    """How old what it says of its memory may be."""

    @property
    def lost(self) -> str:
        """Why it is gone; empty while it is there. Nothing can be started on it after that."""
        ...

    def heard_since(self, moment: float) -> bool:
        """Whether it is known to have been there after `moment` of `time.monotonic`."""
        ...

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory in use on each device, whoever holds it."""
        ...

    def oom_kills(self) -> int:
        """Processes that its kernel has killed for memory; only a difference means anything."""
        ...

    def ready(self, engine: str) -> bool:
        """Whether ranks of `engine` start at once, or `prepare` would make no difference."""
        ...

    def prepare(self, engine: str, family: str, stop: Callable[[], bool], deadline: float) -> None:
        """Make that ranks of `engine`, with models of `family`, start at once; wait for it until
        `deadline`.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        ...

    def start(self, task: Task, dial: Dial | None, log: Path) -> RankProcess:
        """Start a process; what it prints is in `log`, at its end at the latest."""
        ...

    def succeeded(self) -> None:
        """Learn that ranks came up."""
        ...

    def give_up(self, why: str) -> bool:
        """Learn that ranks did not come up; true if from now on they start in another way."""
        ...

    def kill(self, why: str = "") -> None:
        """End everything that is not a rank, at once. A node elsewhere is lost then, and `why`."""
        ...

    def close(self) -> None:
        """Nothing of it is left when this returns; nothing is started after it."""
        ...


@dataclass(frozen=True, eq=False)
class Seat:
    """Where a rank runs."""

    node: Node
    place: int
    """Among all that the node has."""

    @property
    def device(self) -> int:
        """Its device's place among the node's; on a CPU all ranks share the one."""
        return self.place % len(self.node.uuids)


class LocalNode(Forks):
    """The machine that this process runs on."""

    lost = ""
    refreshed_s = 0.0

    def __init__(
        self,
        device: Device,
        logs: Path,
        environment: dict[str, str],
        note: Callable[[str], None],
        *,
        name: str = "",
        address: str = LOOPBACK,
        works: bool = sys.platform == "linux",
    ) -> None:
        """`environment` and `works` as of `Forks`."""
        super().__init__(logs, environment, note, works)
        self.name = name
        self.address = address
        self.uuids = tuple(info.uuid for info in device.infos)
        self.energy_at = device.energy().at
        self._device = device
        self._extensions: dict[str, str] = {}
        """What ranks need to find the ops that were loaded."""

    def heard_since(self, moment: float) -> bool:
        return True

    def in_use_bytes(self) -> tuple[int, ...]:
        return self._device.in_use_bytes()

    def oom_kills(self) -> int:
        return host_oom_kills()

    def start(self, task: Task, dial: Dial | None, log: Path) -> RankProcess:
        share = self._device.shares(task.shares, task.ranks)[task.share]
        environment = (
            share.rank_environment(task.ranks)
            | network.environment(self.address if task.spans else LOOPBACK)
            | {"LOCAL_RANK": str(task.local_rank)}
            | task.environment
        )
        if task.program == "ops":
            self._extensions = extensions.environment(log.parent)
            return _load(task.ops, log, environment | self._extensions)
        assert dial is not None, "a rank dials"
        return self.start_rank(task.engine, dial, log, environment | self._extensions)


def _load(ops: Sequence[str], log: Path, environment: dict[str, str]) -> RankProcess:
    """A process that loads DeepSpeed's `ops`. No lock of a build is left when it is killed."""
    environ = os.environ | environment
    extensions.remove_stale_locks(environ)
    began = time.time()
    process = local.spawn([*local.OPS, *ops], b"", log, environment)
    extensions.note_builder(environ, process.pid)

    def clear(code: int | None) -> None:
        if code != 0:  # what ended by itself left none, and others may be at work there
            extensions.remove_locks(environ, began - 1.0)

    process.at_end = clear
    return process
