"""Ray places an actor on each node of its cluster. The actor holds an agent."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from autotune.errors import UsageError
from autotune.measure.launch import agent
from autotune.measure.launch.client import Client, end, with_line
from autotune.measure.launch.launcher import Launcher, LaunchRequest
from autotune.measure.launch.ray_holder import Held, RayNode
from autotune.measure.runner.local import module_path

# Ray takes over the signals of a process that joins a cluster, so a process of its own joins it.
HOLDER = [sys.executable, "-P", "-m", "autotune.measure.launch.ray_holder"]
REACH_S = 10.0
JOIN_S = 60.0
FREE_S = 40.0
"""Seconds for nodes to become free. Less than the wait for agents, so the reason is known."""
END_S = 5.0
_SAID = re.compile(r"autotune: (.*)")


def make(asked: LaunchRequest) -> Ray:
    """Raises `UsageError` if no cluster can be joined."""
    try:
        _reach(os.environ.get("RAY_ADDRESS", ""))
        looked = subprocess.run(
            HOLDER, check=False, capture_output=True, text=True, timeout=JOIN_S,
            stdin=subprocess.DEVNULL, env=os.environ | module_path(),
        )  # fmt: skip
        why = (looked.stderr.strip().splitlines() or ["it ended"])[-1]
    except subprocess.TimeoutExpired:
        looked, why = None, f"no answer within {JOIN_S:.0f} s"
    except OSError as error:
        looked, why = None, f"{os.environ['RAY_ADDRESS']}: {error.strerror or error}"
    if looked is None or looked.returncode != 0:
        raise UsageError(
            f"--launch ray: no Ray cluster found: {why:.200}; start the study as a Ray job, or"
            " set RAY_ADDRESS=HOST:6379"
        )
    nodes = [RayNode(**each) for each in json.loads(looked.stdout.splitlines()[-1])]
    return Ray(nodes, asked)


def _reach(address: str) -> None:
    """Raises `OSError` if nobody listens at HOST:PORT. Ray takes two minutes to tell it."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()


class Ray(Launcher):
    name = "ray"

    def __init__(self, nodes: list[RayNode], asked: LaunchRequest) -> None:
        super().__init__(asked.nodes or len(nodes), asked.interface)
        self._nodes = nodes

    def _hosts(self) -> Iterable[str]:
        return (node.address for node in self._nodes)

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        held = Held(
            nodes=self.nodes,
            free_s=FREE_S,
            arguments=agent.command(driver)[1:],
            folder=str(Path.cwd()),
            variables=agent.forwarded(),
        )
        self._clients[""] = Client(
            [*HOLDER, json.dumps(asdict(held))],
            key,
            logs / "ray.log",
            os.environ | module_path(),
        )
        return []

    def poll(self) -> list[str]:
        if (client := self._clients.get("")) is None:
            return []
        gone = client.left()  # first, so the lines below are complete
        ended = [said[1] for line in client.new_lines() if (said := _SAID.fullmatch(line))]
        if gone:
            why = with_line(gone, client.last_line())
            ended += [f"all nodes: Ray's driver left with {why}"] * self.nodes
        return ended

    def close(self) -> None:
        end(self._clients.values(), END_S)
