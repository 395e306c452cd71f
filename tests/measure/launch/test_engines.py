"""What every launcher has to do, with its real engine on three hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.measure import launch
from autotune.measure.launch import agent
from tests.support.dialed import STUB, Cluster, Dialed, dialed, stubs, telling, wait_until
from tests.support.namespaces import command_line

pytestmark = pytest.mark.slow

NODES = 2
CLIENTS = {"slurm": "srun ", "ssh": "ssh -F", "ray": "ray_holder"}
"""How command lines of an engine's processes here begin, or what is in them."""


@pytest.fixture
def cluster(engine: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Where agents are stand-ins."""
    monkeypatch.setattr(agent, "MODULE", STUB)
    return engine


@pytest.fixture
def agents(cluster: Cluster, tmp_path: Path) -> Iterator[Dialed]:
    """Those of a launcher for two of its nodes, which has not started."""
    launcher = launch.checked(cluster.launch, NODES)
    assert launcher is not None
    with dialed(launcher, tmp_path) as made:
        yield made
    wait_until(lambda: not stubs(cluster.hosts))


def clients(cluster: Cluster) -> list[int]:
    """Processes of this one by which agents are held."""
    mine = os.getpid()
    return [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if CLIENTS[cluster.engine] in command_line(pid) and parent(pid) == mine
    ]


def parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_each_node_has_an_agent_in_the_study_s_folder(cluster: Cluster, agents: Dialed) -> None:
    said = agents.start()
    assert len({agent["host"] for agent in said}) == NODES
    assert [agent["node"] for agent in said] == [agent["host"] for agent in said]
    assert {agent["folder"] for agent in said} == {str(Path.cwd())}
    assert agents.launcher.nodes == NODES
    assert agents.launcher.poll() == []
    assert agents.told == []


def test_agents_of_slurm_or_ray_have_all_gpus(cluster: Cluster, agents: Dialed) -> None:
    seen = [agent["variables"].get("CUDA_VISIBLE_DEVICES") for agent in agents.start()]
    assert seen == NODES * [None if cluster.engine == "ssh" else "0,1"]


def test_the_key_is_on_no_command_line(cluster: Cluster, agents: Dialed) -> None:
    said = agents.start()
    assert [agent["key"] for agent in said] == NODES * [said[0]["key"]]
    assert telling() == []


def test_an_ended_agent_is_told_of_with_its_last_line(cluster: Cluster, agents: Dialed) -> None:
    agents.start(fails=["n1", "n2", "n3"])
    told = agents.polled(NODES)
    nodes = [line.partition(":")[0] for line in told]
    assert len(set(nodes)) == NODES
    assert set(nodes) <= {host.name for host in cluster.hosts}
    assert all(line.endswith(": no room here") for line in told)


def test_a_ray_that_is_too_small_says_what_it_has(
    of_ray: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.measure.launch.ray.FREE_S", 1.0)
    for name, value in of_ray.variables.items():
        monkeypatch.setenv(name, value)
    launcher = launch.checked(of_ray.launch, 4)
    assert launcher is not None
    with dialed(launcher, tmp_path) as agents:
        launcher.start("127.0.0.1:9", "{}", tmp_path / "key", tmp_path)
        told = agents.polled(5)
    assert all(
        each.startswith("all nodes: Ray's driver left with exit code 1") for each in told[:4]
    )
    assert told[4].startswith("no 4 nodes were free within 1 s: the Ray cluster has n")
    assert "n2 (2 GPUs, 2 CPUs)" in told[1]


def test_nothing_runs_on_any_node_after_close(cluster: Cluster, agents: Dialed) -> None:
    agents.start()
    assert len(stubs(cluster.hosts)) == NODES
    agents.launcher.close()  # the connections are still there
    assert stubs(cluster.hosts) == []
    assert clients(cluster) == []
    agents.launcher.close()


def test_killed_clients_leave_nothing_running(cluster: Cluster, agents: Dialed) -> None:
    agents.start()
    for pid in clients(cluster):
        os.kill(pid, signal.SIGKILL)
    agents.hang_up()
    wait_until(lambda: not stubs(cluster.hosts))
    wait_until(lambda: any("SIGKILL" in line for line in agents.launcher.poll()))
    agents.launcher.close()
    assert clients(cluster) == []
