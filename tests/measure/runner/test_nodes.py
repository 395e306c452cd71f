"""What groups make of their nodes' word, with nodes that only say what they are told to."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure.agent import agent
from autotune.measure.runner import NodeLostError, extensions, remote
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.group import PHASE_DEADLINE_S, Group, GroupRank
from autotune.measure.runner.node import LOOPBACK, Seat
from autotune.measure.runner.ops import Ops
from autotune.measure.runner.remote import Remote
from autotune.measure.runner.wiring import Wiring
from autotune.space.outcome import Verdict
from autotune.space.workload import Workload
from autotune.wire.agents import Joined
from autotune.wire.ranks import Start
from autotune.wire.stream import Stream
from tests.support import defaults
from tests.support.pools import SMALL

OPS = {"CPUAdamBuilder"}


class Process:
    """It has ended with `code`, or runs where that is None."""

    pid = 0

    def __init__(self, code: int | None) -> None:
        self.code = code

    def exit_code(self) -> int | None:
        return self.code

    def lives(self) -> bool:
        return self.code is None

    def limit_log(self) -> str:
        return ""

    def signal(self, number: signal.Signals) -> None:
        self.code = -number if self.code is None else self.code

    def reap(self) -> None:
        pass


class Node:
    """Of one device. Its kernel kills a process for memory before it is asked for the second
    time, where `kills`; it is lost once it has started a process, where `goes`."""

    uuids = ("cpu",)
    energy_at = ""
    address = LOOPBACK
    refreshed_s = 0.0

    def __init__(self, name: str, *, kills: bool = False, goes: bool = False) -> None:
        self.name = name
        self.lost = ""
        self._kills = iter([3, *[3 + kills] * 100])
        self._goes = goes
        self.started = 0

    def heard_since(self, moment: float) -> bool:
        return True

    def oom_kills(self) -> int:
        return next(self._kills)

    def start(self, task: object, dial: object, log: Path) -> Process:
        self.started += 1
        if self._goes:
            self.lost = f"node {self.name} was lost"
            return Process(-signal.SIGKILL)
        return Process(0)


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("where", "verdict", "reason"),
    [
        ("n2", Verdict.OOM, "rank 1 was killed by the host's OOM killer"),
        ("n1", Verdict.CRASHED, "rank 0 left with exit code 1 before it dialled in phase import"),
    ],
)
def test_the_kernel_that_counts_is_that_of_the_killed_ranks_node(
    channel: Channel, where: str, verdict: Verdict, reason: str
) -> None:
    nodes: Any = [Node(name, kills=name == where) for name in ("n1", "n2")]
    ranks = [
        GroupRank(
            number=number, process=Process(code), log=Path(f"rank{number}.log"),
            seat=Seat(nodes[number], 0), token=str(number),
        )
        for number, code in enumerate([1, -signal.SIGKILL])
    ]  # fmt: skip
    group = Group(channel, ranks, Wiring(logs=Path(), note=print), _start())
    failure = group.start(time.monotonic() + 60)
    assert failure is not None
    assert failure.verdict is verdict
    assert reason in failure.reason


def test_a_node_that_is_lost_while_ops_are_loaded_says_nothing_of_the_op(tmp_path: Path) -> None:
    notes: list[str] = []
    ops = Ops("cuda", _workload(), Wiring(logs=tmp_path, note=notes.append))
    stays: Any = Node("n1")
    goes: Any = Node("n2", goes=True)
    with pytest.raises(NodeLostError, match="node n2 was lost"):
        ops.load(OPS, [stays, goes], time.monotonic() + 60)
    candidate = replace(SMALL, zero_stage=1, offload="optimizer")
    assert ops.refusal(candidate) is None
    assert ops.missing(candidate, [stays]) == OPS  # nobody knows how it went
    ops.load(OPS, [stays], time.monotonic() + 60)
    assert not ops.missing(candidate, [stays])


def test_a_node_that_starts_no_process_is_lost_and_no_candidate_hung(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node: Any = Node("n1")
    ended: list[str] = []

    def kill(why: str) -> None:
        ended.append(why)
        node.lost = f"node n1 was lost: {why}"

    node.kill = kill
    process = Process(None)
    rank = GroupRank(number=0, process=process, log=Path("log"), seat=Seat(node, 0), token="0")
    for phase in PHASE_DEADLINE_S:
        monkeypatch.setitem(PHASE_DEADLINE_S, phase, 0.0)
    group = Group(channel, [rank], Wiring(logs=Path(), note=print), _start())
    with pytest.raises(NodeLostError, match="node n1 was lost: it started no process within 0 s"):
        group.start(time.monotonic() + 60)
    assert ended == ["it started no process within 0 s"]
    node.lost, process.pid = "", 7
    failure = group.start(time.monotonic() + 60)
    assert failure is not None
    assert failure.verdict is Verdict.HUNG


@pytest.mark.parametrize("own", [None, "/scratch/ops"])
def test_nodes_compile_in_own_folders(monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    monkeypatch.setenv(extensions.VARIABLE, own or "")
    if own is None:
        monkeypatch.delenv(extensions.VARIABLE)
    nothing: Any = SimpleNamespace()
    agent.Agent(nothing, "n2", nothing)
    wanted = own or "/home/me/.cache/torch_extensions/n2"
    assert os.environ[extensions.VARIABLE] == wanted


def _start() -> Start:
    return defaults.start(
        world_size=2, device_uuid="", capacity_bytes=2**30, model=_workload().spec(1, SMALL.build)
    )


def _workload() -> Workload:
    return defaults.workload(world_size=2)


# An agent's.


@pytest.fixture
def dialled() -> Iterator[tuple[Remote, Peer, list[str]]]:
    """A node, its agent's end of the connection, and what was told of its loss."""
    ours, theirs = socket.socketpair()
    told: list[str] = []
    joined = Joined(name="n1", version="", pid=1)
    peer = Peer(Stream(theirs))
    node = Remote(Peer(Stream(ours)), joined, "cpu", told.append, told.append)
    yield node, peer, told
    node.kill()
    peer.close()


class Together:
    """A name that the first two threads have to be about to write at once."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2, timeout=20)
        self.asked = itertools.count()

    def __format__(self, spec: str) -> str:
        if next(self.asked) < 2:
            self.both.wait()
        return "n1"


def test_a_node_that_two_threads_find_lost_is_told_of_once(
    dialled: tuple[Remote, Peer, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _, told = dialled
    monkeypatch.setattr(node, "name", Together())
    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(node.kill, why) for why in ("this", "that")]:
            each.result()
    assert told == [node.lost]
    assert node.lost in ("node n1 was lost: this", "node n1 was lost: that")


def test_a_node_that_is_silent_at_the_end_is_lost(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(remote, "LOST_S", 0.5)
    node, _, told = request.getfixturevalue("dialled")
    node.close()
    assert told == ["node n1 was lost: no sign of it for 0 s"]


def test_a_node_that_hangs_up_at_the_end_is_not_lost(
    dialled: tuple[Remote, Peer, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, agent_end, told = dialled
    monkeypatch.setattr(remote, "LOST_S", 60.0)

    def answer() -> None:
        with suppress(EOFError):
            while True:
                agent_end.receive()
        agent_end.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(answer)
        began = time.monotonic()
        node.close()
    assert told == []
    assert time.monotonic() - began < remote.LOST_S
