"""A node: one machine that ranks run on.

`LocalNode` is the machine of this process: the study's own, or an agent's, which a study elsewhere
sees as `Remote`. Groups and pools start processes in no other way.

Between hosts TLS protects the study's messages. TCP stores and gloo have no TLS. They listen on
the interface that reaches the study, so its network has to be trusted.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil

from autotune.device.cpu import host_oom_kills
from autotune.device.device import Device
from autotune.measure.runner import extensions, local
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.process import RankProcess
from autotune.wire.agents import Task
from autotune.wire.dial import Dial

LOOPBACK = "127.0.0.1"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
RECENT_S = 2.0
"""A node beats every second."""


class Node(Protocol):
    name: str
    """Shown to users; empty for the study's own machine."""
    address: str
    """Other nodes reach it here."""
    uuids: tuple[str, ...]
    energy_at: str
    """Where its devices' energy is counted; see `Start.energy`."""
    refreshed_s: float
    """Maximum age of its numbers for memory."""

    @property
    def lost(self) -> str:
        """Why it is lost; empty while it is there. Nothing starts on a lost node."""

    def heard_since(self, moment: float) -> bool:
        """Whether it gave a sign of life after `moment` of `time.monotonic`."""

    def in_use_bytes(self) -> tuple[int, ...]:
        """Memory in use on each device, whoever holds it."""

    def oom_kills(self) -> int:
        """Processes that its kernel has killed for memory. Only differences are meaningful."""

    def ready(self, engine: str) -> bool:
        """Whether ranks of `engine` start at once, or `prepare` would not help."""

    def prepare(self, engine: str, family: str, stop: Callable[[], bool], deadline: float) -> None:
        """Prepare to start ranks of `engine` with models of `family`; wait until `deadline`.
        Raises StopRequestedError if the user asked to stop."""

    def start(self, task: Task, dial: Dial | None, log: Path) -> RankProcess:
        """Start a process. `log` has its output, at its end at the latest."""

    def succeeded(self) -> None:
        """Learn that ranks came up."""

    def give_up(self, why: str) -> bool:
        """Learn that ranks did not come up. True if they start in another way from now on."""

    def kill(self, why: str = "") -> None:
        """End everything but ranks, at once. A node elsewhere is then lost, because of `why`."""

    def close(self) -> None:
        """End all that the node started; nothing starts after it."""


@dataclass(frozen=True, eq=False)
class Seat:
    """The place of one rank."""

    node: Node
    place: int
    """Its index among the node's places."""

    @property
    def device(self) -> int:
        """Index of its device on the node; on a CPU all ranks share one."""
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
        super().__init__(logs, environment, note, works)
        self.name = name
        self.address = address
        self.uuids = tuple(info.uuid for info in device.infos)
        self.energy_at = device.energy().at
        self._device = device
        self._compiled = extensions.Compiled(logs)
        self._extensions: dict[str, str] = {}
        """Variables by which ranks find the loaded ops."""

    def heard_since(self, moment: float) -> bool:
        return True

    def in_use_bytes(self) -> tuple[int, ...]:
        return self._device.in_use_bytes()

    def oom_kills(self) -> int:
        return host_oom_kills()

    def close(self) -> None:
        super().close()
        self._compiled.remove()

    def start(self, task: Task, dial: Dial | None, log: Path) -> RankProcess:
        share = self._device.shares(task.shares, task.ranks)[task.share]
        environment = (
            share.rank_environment(task.ranks)
            | _interfaces(self.address if task.spans else LOOPBACK)
            | {"LOCAL_RANK": str(task.local_rank)}
            | task.environment
        )
        if task.program == "ops":
            self._extensions = extensions.environment(log.parent)
            return _load(task.ops, log, environment | self._extensions)
        assert dial is not None, "a rank dials"
        environment = self._compiled.variables() | environment | self._extensions
        began = time.time()
        process = self.start_rank(task.engine, dial, log, environment)
        process.at_end = partial(_clear, os.environ | environment, began)
        return process


def _load(ops: Sequence[str], log: Path, environment: dict[str, str]) -> RankProcess:
    """A process that loads DeepSpeed's `ops`. If it is killed, no lock of a build is left."""
    environ = os.environ | environment
    extensions.remove_stale_locks(environ)
    began = time.time()
    process = local.spawn([*local.OPS, *ops], b"", log, environment)
    extensions.note_builder(environ, process.pid)
    process.at_end = partial(_clear, environ, began)
    return process


def _clear(environ: Mapping[str, str], began: float, code: int | None) -> None:
    """Remove locks of a process that `began` then and ended with `code`."""
    if code != 0:  # a process that ended well released its own
        extensions.remove_locks(environ, began - 1.0)


def _interfaces(address: str) -> dict[str, str]:
    """Has gloo and NCCL meet on the interface of this host that has `address`.

    With another interface rank 0 waits for a minute, and a container may not resolve the host's
    name. The user's variables for NCCL stay; those for gloo too, if ranks are on several hosts.
    """
    if sys.platform != "linux":
        return {}
    loopback = address.startswith("127.")
    name = "lo" if loopback else interface_of(address)
    # NCCL takes all interfaces with that prefix; "=" asks for this one alone.
    found = dict(zip(INTERFACES, (name, f"={name}"), strict=True)) if name else {}
    kept = INTERFACES[1:] if loopback else INTERFACES
    return found | {each: os.environ[each] for each in kept if each in os.environ}


def interface_of(address: str) -> str:
    """The name of the interface of this host that has `address`; empty where none has."""
    for name, has in psutil.net_if_addrs().items():
        families = (socket.AF_INET, socket.AF_INET6)
        if any(each.family in families and each.address == address for each in has):
            return name
    return ""
