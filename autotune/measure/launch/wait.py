"""The user starts the agents, with lines that the study prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import UsageError
from autotune.measure.launch import agent
from autotune.measure.launch.launcher import Launcher, LaunchRequest
from autotune.measure.runner.local import module_path

_OUTSIDE = "192.0.2.1"
"""An address for documentation (RFC 5737): its route is that to all other networks."""


def make(asked: LaunchRequest) -> Wait:
    """Raises `UsageError` without a number of nodes."""
    if asked.nodes is None:
        raise UsageError("--launch wait: the number of agents is missing; add e.g. --nodes 2")
    return Wait(asked.nodes, asked.interface)


class Wait(Launcher):
    """Starts nothing."""

    name = "wait"

    def _hosts(self) -> Iterable[str]:
        return [_OUTSIDE]

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        """How the user starts them: by hand, by torchrun, by kubectl. Nodes need `key_file`."""
        held = shlex.join(agent.command(driver, str(key_file)))
        variables = shlex.join(f"{name}={value}" for name, value in module_path().items())
        piped = shlex.join(agent.command(driver))
        return [
            f"start {self.nodes} agents, one on each node, from a copy of this folder and of"
            f" {key_file}, by one of:",
            f"  env {variables} {held}",
            f"  env {variables} torchrun --nnodes {self.nodes} --nproc-per-node 1"
            f" --rdzv-backend c10d --rdzv-endpoint NODE:29400 --no-python {held}",
            f"  kubectl exec -i POD -- env {variables} {piped} < {shlex.quote(str(key_file))}",
        ]
