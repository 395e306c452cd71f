"""Nodes that a study gathers: who comes, who does not, and what it makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.device.cpu import cores
from autotune.errors import NoNodesError, UsageError
from autotune.measure.agent.agent import UNASKED
from autotune.measure.launch.launcher import Launcher
from autotune.measure.runner.remote import Remote
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed import cluster as cluster_module
from autotune.measure.testbed.cluster import Cluster, check_alike
from autotune.space.options import Options
from autotune.wire.agents import Facts, NodeDevice
from tests.support.dialed import wait_until
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow

AGENT = "from autotune.measure.agent.command import main; sys.exit(main())"
OLD = "import autotune.installed; autotune.installed.VERSION = '0.0.1'; " + AGENT
DIFFERENT = (
    """
from autotune.measure.agent import agent
agent.cores = lambda: 99
"""
    + AGENT
)
OTHER = (
    """
from autotune.wire import messages

messages.VERSION += 1
"""
    + AGENT
)
BROKEN = "sys.exit('no such file')"


class Here(Launcher):
    """It starts an agent on this machine for each program."""

    def __init__(self, programs: Sequence[str], slots: Mapping[str, int]) -> None:
        super().__init__(len(programs), interface=None)
        self.names = tuple(f"n{number}" for number in range(1, self.nodes + 1))
        self.slots = slots
        self._programs = programs
        self.started: list[subprocess.Popen[str]] = []

    def address(self) -> str:
        return "127.0.0.1"

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        for number, program in enumerate(self._programs, 1):
            if not program:
                continue
            words = ["--driver", driver, "--key-file", "-", "--node", f"n{number}"]
            process = subprocess.Popen(
                [sys.executable, "-c", "import sys\n" + dedent(program), *words],
                stdin=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(key + "\n")
            process.stdin.close()
            self.started.append(process)
        return []

    def poll(self) -> list[str]:
        ended = [each for each in self.started if each.poll() not in (None, 0)]
        self.started = [each for each in self.started if each not in ended]
        return [f"n{self.nodes}: left with exit code {each.returncode}" for each in ended]

    def last_line(self) -> str:
        return "engine: queued and waiting for resources"

    def close(self) -> None:
        for each in self.started:
            each.wait(20)


Gathered = list[Cluster]


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    made: Gathered = []
    yield made
    for each in made:
        each.close()


def cluster(
    programs: Sequence[str], *, slots: Mapping[str, int] | None = None, dial_s: float = 60.0,
    allow_mixed: bool = False,
) -> Cluster:  # fmt: skip
    launcher = Here(programs, slots or {})
    return Cluster(launcher, "cpu", allow_mixed=allow_mixed, allow_busy=False, dial_s=dial_s)


def test_a_group_is_on_as_many_nodes_as_it_needs(gathered: Gathered) -> None:
    nodes = cluster([AGENT, AGENT], slots={"n1": 2, "n2": 2})
    gathered.append(nodes)
    space = nodes.space(Options.of(world_size=2))
    assert (space.workload.nodes, space.workload.ranks_on_a_node) == (1, 2)
    assert nodes.slots(Options.of(world_size=2, parallel="auto"), space) == 2
    whole = nodes.space(Options.of(world_size=4))
    assert (whole.workload.nodes, whole.workload.ranks_on_a_node) == (2, 2)
    assert nodes.slots(Options.of(world_size=4, parallel="auto"), whole) == 1
    assert whole.limits == space.limits  # of a rank, and of a host
    assert nodes.space(Options()).workload.world_size == 2  # one on each
    most = 2 * 2 * cores()
    assert nodes.space(Options.of(world_size=4)).workload.world_size <= most
    with pytest.raises(UsageError, match=f"--world-size {most + 1}: at most {most} here"):
        nodes.space(Options.of(world_size=most + 1))


def test_more_ranks_or_groups_than_there_are_places_are_refused(gathered: Gathered) -> None:
    nodes = cluster([AGENT, AGENT], slots={"n1": 1, "n2": 2})
    gathered.append(nodes)
    with pytest.raises(UsageError, match=r"--world-size 4: .* 3 places .* use --world-size 3"):
        nodes.space(Options.of(world_size=4))
    with pytest.raises(UsageError, match=r"--parallel 2: 2 nodes hold 1 groups of 3 ranks"):
        nodes.space(Options.of(world_size=3, parallel=2))


def test_a_missing_node_is_named(gathered: Gathered, capsys: pytest.CaptureFixture[str]) -> None:
    gathered.append(cluster([AGENT, BROKEN]))
    said = capsys.readouterr().err
    assert "n2: left with exit code 1" in said
    assert "n2 is not there; going on with n1" in said
    gathered.append(cluster([AGENT, ""], dial_s=5.0))
    assert (
        "n2 is not there, no agent has dialled in 5 s; going on with n1" in capsys.readouterr().err
    )


def test_without_any_node_there_is_no_study() -> None:
    with pytest.raises(NoNodesError, match=r"no node to run on: n1: left with exit code 1"):
        cluster([BROKEN])
    why = r"no agent has dialled 127.0.0.1:\d+ in 0 s; engine: queued and waiting for resources"
    with pytest.raises(NoNodesError, match=why):
        cluster([""], dial_s=0.2)


def test_nodes_with_another_version_are_refused() -> None:
    with pytest.raises(UsageError, match=r"node n2 has autotune 0.0.1, .* install the same"):
        cluster([AGENT, OLD])


def test_nodes_that_speak_another_version_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"an agent runs another version of autotune .*install"):
        cluster([OTHER])
    assert f"autotune.agent: {UNASKED}" in capfd.readouterr().err


def test_agents_on_the_same_device_are_refused() -> None:
    with pytest.raises(UsageError, match="n1 and n2 have the same device GPU-0; start one agent"):
        check_alike([node("n1"), node("n2")], allow_mixed=True)


def test_sizes_that_firmware_makes_differ_are_the_same() -> None:
    check_alike([node("n1"), node("n2", size=100.5, uuid="GPU-1")], allow_mixed=False)
    with pytest.raises(UsageError, match="n1 has 1 x a GPU of 100 MiB, n2 has 1 x a GPU of 110"):
        check_alike([node("n1"), node("n2", size=110, uuid="GPU-1")], allow_mixed=False)


def test_kills_of_the_kernel_before_a_node_came_are_not_those_of_its_ranks() -> None:
    there: Any = object.__new__(Remote)
    there._take(replace(node("n1").facts, oom_kills=3))
    assert (there.oom_kills(), there.in_use_bytes()) == (3, (0,))


def node(name: str, *, size: float = 100, uuid: str = "GPU-0") -> Any:
    """A node of one GPU of `size` MiB."""
    device = NodeDevice(
        uuid=uuid, name="a GPU", capacity_bytes=int(size * 2**20), in_use_bytes=0, bf16=True,
        busy="",
    )  # fmt: skip
    facts = Facts(
        kind="cuda", devices=[device], fingerprint={}, host_memory_bytes=2**30, cores=8,
        software={}, energy_at="", energy_lack="", address="",
    )  # fmt: skip
    return SimpleNamespace(name=name, uuids=(uuid,), facts=facts)


def test_what_becomes_of_agents_in_the_study_is_said_and_their_logs_are_kept(
    gathered: Gathered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "HEAR_S", 0.05)
    nodes = cluster([AGENT])
    gathered.append(nodes)
    options = Options.of(depth=(1,), seq_len=(32,), micro_batch=(1,))
    notes: list[str] = []
    wiring = Wiring(
        logs=tmp_path, seed=0, budget_s=60.0, stop=lambda: False, on_phase=print, note=notes.append
    )
    (nodes._scratch.folder / "srun.log").write_text("srun: task 0: Killed\n")
    (runner,) = nodes.runners(nodes.space(options), [wiring])
    launcher: Any = nodes._launcher
    launcher.started[0].kill()
    wait_until(lambda: "n1: left with exit code -9" in notes)
    runner.close()
    assert (tmp_path / "srun.log").read_text() == "srun: task 0: Killed\n"
    assert not (tmp_path / "key").exists()


def test_nodes_that_differ_are_refused_unless_that_is_meant(gathered: Gathered) -> None:
    with pytest.raises(UsageError, match=r"n1 has \d+ cores, n2 has 99 cores; .* --allow-mixed"):
        cluster([AGENT, DIFFERENT])
    nodes = cluster([AGENT, DIFFERENT], allow_mixed=True)
    gathered.append(nodes)
    assert nodes.device.fingerprint()["nodes"] == 2


def test_a_node_without_the_device_says_so() -> None:
    launcher = Here([AGENT], {})
    with pytest.raises(UsageError, match=r"node n1: --device cuda: "):
        Cluster(launcher, "cuda", allow_mixed=False, allow_busy=False, dial_s=60.0)
