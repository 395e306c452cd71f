"""Groups that span hosts: as good as on one, and what becomes of them when a node goes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import NoNodesError
from autotune.measure.runner import Result
from autotune.measure.runner.node import RECENT_S
from autotune.measure.runner.pool import Pool
from autotune.measure.runner.remote import LEASE_S, LOST_S
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from tests.support import defaults
from tests.support.agents import QUICK_AGENT, SLACK_S, Agents, ranks_on, until
from tests.support.namespaces import network
from tests.support.pools import RULE, SMALL

pytestmark = pytest.mark.slow


@pytest.fixture
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Agents]]:
    """Agents of quick ranks on three hosts; nothing of them is left afterwards."""
    temporary = tmp_path_factory.mktemp("tmp")
    with network(3) as net, ExitStack() as stack:

        def one(**variables: str) -> Agents:
            made = Agents(net, QUICK_AGENT, TMPDIR=str(temporary), **variables)
            stack.callback(made.close)
            return made

        yield one
        for host in net.hosts:
            host.heal()
        stack.close()
        for host in net.hosts:
            assert until(lambda host=host: not host.processes(), SLACK_S), host.processes()
    assert until(lambda: not list(temporary.iterdir()), SLACK_S), list(temporary.iterdir())


def probe(pool: Pool, candidate: Candidate = SMALL, **job: Any) -> Result:
    asked = defaults.job(candidate, **{"rule": RULE, "fresh": True} | job)
    return pool.run(asked, time.monotonic() + 120)


# What becomes of them.


def at_timed(act: Callable[[], None]) -> Callable[[Phase, int], None]:
    """Does `act` once, in a thread, when the timed steps begin."""
    done = threading.Event()

    def on_phase(phase: Phase, steps: int) -> None:
        if phase is Phase.TIMED and not done.is_set():
            done.set()
            threading.Thread(target=act).start()

    return on_phase


LONG = replace(RULE, timed_least_s=600.0, timed_limit_s=600.0)


def test_a_cut_link_is_a_lost_node(quick: Callable[..., Agents], tmp_path: Path) -> None:
    agents = quick()
    cut, was = agents.hosts[1], time.monotonic()

    def act() -> None:
        nonlocal was
        was = time.monotonic()
        cut.cut()

    pool = agents.pool(tmp_path, on_phase=at_timed(act))
    result = probe(pool, rule=LONG)
    took_s = time.monotonic() - was
    assert (result.put_off, result.gone) == (True, "")
    assert (result.verdict, result.report) == (Verdict.SKIPPED, None)
    assert "node n2 was lost: no sign of it" in result.reason
    assert took_s < LOST_S + 1 + SLACK_S
    assert until(lambda: not ranks_on(cut), LEASE_S + SLACK_S)  # while it is cut
    again = probe(pool)  # on the others
    assert again.verdict is Verdict.OK
    assert [bool(ranks_on(host)) for host in agents.hosts] == [True, False, True]
    cut.heal()
    assert probe(pool).verdict is Verdict.OK
    assert not ranks_on(cut)
    pool.close()


def test_silent_nodes_get_no_group(quick: Callable[..., Agents], tmp_path: Path) -> None:
    agents = quick()
    pool = agents.pool(tmp_path)
    assert probe(pool).verdict is Verdict.OK

    def cut(number: int) -> None:
        agents.hosts[number - 1].cut()
        node = agents.nodes[number - 1]
        assert until(lambda: not node.heard_since(time.monotonic() - RECENT_S), SLACK_S)
        assert not node.lost

    cut(2)
    assert probe(pool).verdict is Verdict.OK  # on the others
    assert agents.notes[-1] == "node n2 was lost: no sign of it for 7 s"
    cut(3)
    with pytest.raises(NoNodesError, match=r"node n2 was lost: .*; node n3 was lost: "):
        probe(pool)
    pool.close()


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGKILL, "its agent is gone"),
        (signal.SIGSTOP, "no sign of it for 7 s"),
        (signal.SIGTERM, "its agent was ended, with exit code 143"),
    ],
)
def test_an_agent_that_ends_or_stops_is_a_lost_node_and_leaves_nothing(
    quick: Callable[..., Agents], tmp_path: Path, number: signal.Signals, why: str
) -> None:
    agents = quick()
    lost = agents.hosts[1]

    def act() -> None:
        os.kill(agents.processes[1].pid, number)

    pool = agents.pool(tmp_path, on_phase=at_timed(act))
    result = probe(pool, rule=LONG)
    assert result.put_off
    assert f"node n2 was lost: {why}" in result.reason
    assert result.reason in agents.notes
    assert until(lambda: not ranks_on(lost), SLACK_S)
    assert probe(pool).verdict is Verdict.OK
    pool.close()


def test_a_killed_rank_is_no_lost_node(quick: Callable[..., Agents], tmp_path: Path) -> None:
    agents = quick(FAULT="killed@timed:1")
    pool = agents.pool(tmp_path)
    result = probe(pool)
    assert result.verdict is Verdict.CRASHED
    assert "rank 1 was ended by SIGKILL in phase timed; see group001-rank1.log" in result.reason
    assert not any(node.lost for node in agents.nodes)
    pool.close()
