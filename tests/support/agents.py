"""Agents on the hosts of a test's network, and groups over them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from autotune.measure.runner.channel import Channel
from autotune.measure.runner.gather import gather
from autotune.measure.runner.identity import identity
from autotune.measure.runner.pool import Pool, pools
from autotune.measure.runner.remote import Remote
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.space.space import Limits
from tests.support import defaults
from tests.support.namespaces import Host, Network
from tests.support.programs import ROOT, TESTS

AGENT = [sys.executable, "-P", "-m", "autotune.agent"]
QUICK_AGENT = [sys.executable, "-P", str(TESTS / "support" / "quick_agent.py")]


SLACK_S = 8.0
"""Extra seconds for a busy machine."""


class Agents:
    """An agent on each host, which has dialled, as in a study."""

    def __init__(self, net: Network, program: Sequence[str] = AGENT, **variables: str) -> None:
        self.net = net
        self.hosts = net.hosts
        self.notes: list[str] = []
        self.identity = identity()
        self.channel = Channel(net.address, self.identity)
        self.driver = ":".join(map(str, self.channel.address))
        self.line = self.channel.credentials
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        self.processes = [self._start(host, program, environment) for host in self.hosts]
        self.nodes: list[Remote] = gather(
            self.channel, len(self.hosts), device="cpu", limit_s=60, ended=lambda: [],
            note=self.notes.append, on_lost=self.notes.append,
        )  # fmt: skip

    def _start(
        self, host: Host, program: Sequence[str], environment: dict[str, str]
    ) -> subprocess.Popen[str]:
        words = [*program, "--driver", self.driver, "--key-file", "-", "--node", host.name]
        process = subprocess.Popen(
            host.command(*words), stdin=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdin is not None
        process.stdin.write(self.line + "\n")
        process.stdin.close()
        return process

    def pool(
        self, logs: Path, ranks: int = 2, places: int = 1, *, engine: str = "auto", **how: Any
    ) -> Pool:
        """Groups of so many ranks; a node takes `places` of them."""
        seating = Seating([(node, places) for node in self.nodes], ranks)
        workload = defaults.workload(
            engine=engine, world_size=ranks, nodes=seating.nodes,
        )  # fmt: skip
        limits = Limits(
            capacity_bytes=4 * 2**30, ceiling=0.8, host_capacity_bytes=64 * 2**30, host_ceiling=0.9
        )
        wiring = Wiring(logs=logs, **{"note": self.notes.append} | how)
        (pool,) = pools(
            "cpu", seating, workload, limits, [wiring], close=lambda: None,
            channel=partial(Channel, self.net.address, self.identity),
        )  # fmt: skip
        return pool

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.channel.close()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def ranks_on(host: Host) -> list[int]:
    """Processes that write to a group's log there."""
    found = []
    for pid in host.processes():
        try:
            log = Path(f"/proc/{pid}/fd/1").readlink().name
        except OSError:
            continue
        if log.startswith("group"):
            found.append(pid)
    return found


def until(what: Any, limit_s: float) -> bool:
    """Whether `what` comes true within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
