"""What is left of agents whose engine was killed on a node, or in the study's hands."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autotune.measure import launch
from autotune.measure.testbed.cluster import Cluster as Nodes
from tests.support.dialed import Cluster, wait_until
from tests.support.namespaces import Host

pytestmark = pytest.mark.slow

DAEMONS = {"slurm": "slurmd", "ssh": "sshd", "ray": "raylet"}
CLIENTS = {"slurm": "srun ", "ssh": "ssh ", "ray": "ray_holder"}


def agents_on(host: Host) -> list[str]:
    return [line for line in host.processes().values() if "autotune.agent" in line]


def kill(named: str, pids: list[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            if named in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                os.kill(pid, signal.SIGKILL)


def below(parent: int) -> list[int]:
    """Processes that this one started, and theirs."""
    return [child.pid for child in psutil.Process(parent).children(recursive=True)]


@pytest.mark.parametrize("whose", ["client", "daemon"])
def test_nothing_is_left_of_a_study_whose_engine_ended(engine: Cluster, whose: str) -> None:
    launcher = launch.checked(engine.launch, 2)
    assert launcher is not None
    nodes = Nodes(launcher, "cpu", allow_mixed=False, allow_busy=False, dial_s=60.0)
    try:
        assert sum(bool(agents_on(host)) for host in engine.hosts) == 2
        if whose == "client":
            kill(CLIENTS[engine.engine], below(os.getpid()))
        else:
            for host in engine.hosts:
                kill(DAEMONS[engine.engine], list(host.processes()))
    finally:
        nodes.close()
    wait_until(lambda: not any(agents_on(host) for host in engine.hosts))
