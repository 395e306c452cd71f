"""Nobody starts agents: the user does, with the lines that are shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import UsageError
from autotune.measure.launch import agent
from autotune.measure.launch.launcher import Launcher, LaunchRequest
from autotune.measure.runner.local import module_path

_OUTSIDE = "192.0.2.1"
"""An address that is nobody's (RFC 5737): the way there is that to all other networks."""


def make(asked: LaunchRequest) -> Wait:
    """Raises `UsageError` where it is not said how many to wait for."""
    if asked.nodes is None:
        raise UsageError("--launch wait: the number of agents is missing; add e.g. --nodes 2")
    return Wait(asked.nodes, asked.interface)


class Wait(Launcher):
    """It starts nothing."""

    name = "wait"

    def _hosts(self) -> Iterable[str]:
        return [_OUTSIDE]

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        """The file of the key has to be where agents are started."""
        return lines(self.nodes, driver, key_file)


def lines(nodes: int, driver: str, key_file: Path) -> list[str]:
    """How to start agents: by hand, by torchrun, by kubectl."""
    held = shlex.join(agent.command(driver, str(key_file)))
    variables = shlex.join(f"{name}={value}" for name, value in module_path().items())
    piped = shlex.join(agent.command(driver))
    return [
        f"start {nodes} agents, one on each node, from a copy of this folder and of"
        f" {key_file}, by one of:",
        f"  env {variables} {held}",
        f"  env {variables} torchrun --nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d"
        f" --rdzv-endpoint NODE:29400 --no-python {held}",
        f"  kubectl exec -i POD -- env {variables} {piped} < {shlex.quote(str(key_file))}",
    ]
