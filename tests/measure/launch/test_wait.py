"""Agents that are started by hand, with the lines that are shown."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.measure import launch
from autotune.measure.launch import agent
from tests.support.dialed import STUB, Dialed, dialed, stubs, telling, wait_until
from tests.support.namespaces import Network, network

NODES = 2


@pytest.fixture
def net() -> Iterator[Network]:
    with network(NODES) as made:
        yield made


@pytest.fixture
def agents(net: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dialed]:
    monkeypatch.setattr(agent, "MODULE", STUB)
    launcher = launch.checked("wait", NODES, interface=net.address)
    assert launcher is not None
    with dialed(launcher, tmp_path) as made:
        yield made
    wait_until(lambda: not stubs(net.hosts))


def run_everywhere(net: Network, line: str) -> None:
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    for host in net.hosts:
        subprocess.Popen(
            host.command("sh", "-c", f"exec {line}"), env=os.environ | {"PATH": programs}
        )


def test_agents_start_by_the_line_that_is_shown(net: Network, agents: Dialed) -> None:
    said = agents.start(lambda told: run_everywhere(net, told[1]))
    assert [agent["node"] for agent in said] == ["n1", "n2"]
    assert telling() == []
    assert agents.launcher.poll() == []


@pytest.mark.slow
def test_torchrun_starts_agents(net: Network, agents: Dialed) -> None:
    def start(told: list[str]) -> None:
        run_everywhere(net, told[2].replace("NODE:", f"{net.hosts[0].address}:"))

    said = agents.start(start)
    assert [agent["node"] for agent in said] == ["n1", "n2"]


def test_kubectl_hands_the_key_over_stdin(net: Network, agents: Dialed) -> None:
    def start(told: list[str]) -> None:
        # As kubectl does it, in the place of `kubectl exec -i POD --`.
        run_everywhere(net, told[3].partition(" -- ")[2])

    assert len(agents.start(start)) == NODES
    assert telling() == []
