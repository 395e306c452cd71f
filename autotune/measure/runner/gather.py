"""Waits for the agents of a study, and opens the devices of their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait

from autotune.errors import NoNodesError, UsageError
from autotune.installed import VERSION
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.remote import Remote
from autotune.wire.agents import Joined
from autotune.wire.messages import WireError

POLL_S = 0.2


def gather(
    channel: Channel,
    wanted: int,
    *,
    device: str,
    limit_s: float,
    names: Sequence[str] = (),
    ended: Callable[[], Sequence[str]],
    last_line: Callable[[], str] = str,
    note: Callable[[str], None],
    on_lost: Callable[[str], None],
) -> list[Remote]:
    """Agents that dial `channel`: `wanted` ones, or fewer after `limit_s`, ordered by name.

    Each opens `device`, as `--device` names it. `names` are the nodes' names, if known; without
    them each node that dials is noted. `ended` names agents that ended, as the launcher knows
    them; `last_line` is the launcher's last output. `on_lost` is told of nodes lost now or later.

    Raises:
        UsageError: a node has another version of autotune, or not that device.
        NoNodesError: none dialled.
    """
    nodes: list[Remote] = []
    said: list[str] = []
    on_come: Callable[[str], object] = str if names else note
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline and len(_there(nodes)) < wanted:
            wait([channel], POLL_S)  # type: ignore[list-item]
            while (peer := channel.accept()) is not None:
                nodes.append(Remote(peer, _word_of(peer), device, note, on_lost))
                _name_apart(nodes)
                come = sum(not node.lost for node in nodes)
                on_come(f"node {nodes[-1].name} has come, {come} of {wanted}")
            _check(nodes)
            for each in ended():
                if each not in said:
                    note(each)
                said.append(each)
            if len(said) + len([n for n in nodes if not n.lost]) >= wanted and said:
                deadline = min(deadline, time.monotonic() + 1.0)  # nobody else will come
        there = _there(nodes)[:wanted]
        for node in nodes:
            if node not in there:
                node.close()
        if not there:
            where = ":".join(map(str, channel.address))
            silence = [f"no agent has dialled {where} in {limit_s:.0f} s", last_line()]
            why = said[-1] if said else "; ".join(filter(None, silence))
            raise NoNodesError(f"no node to run on: {why}")
        if len(there) < wanted:
            note(_who_lacks(there, wanted, names, "" if said else f"{limit_s:.0f}"))
        return sorted(there, key=lambda node: node.name)
    except BaseException:
        for node in nodes:
            node.close()
        raise


def _word_of(peer: Peer) -> Joined:
    """An agent's first message. It knows the key, so it is trusted."""
    why = ""
    try:
        if isinstance(joined := peer.receive(), Joined):
            return joined
    except WireError as error:
        why = f" ({error})"
    peer.close()
    raise UsageError(
        f"--launch: an agent runs another version of autotune{why}; install the same version on"
        " all nodes"
    )


def _who_lacks(there: Sequence[Remote], wanted: int, names: Sequence[str], late: str) -> str:
    have = [node.name for node in there]
    lack = [name for name in names if name not in have]
    who = ", ".join(lack) or f"{wanted - len(there)} of {wanted} nodes"
    why = f", no agent has dialled in {late} s" if late else ""
    is_or_are = "is" if len(lack) == 1 else "are"
    return f"{who} {is_or_are} not there{why}; going on with {', '.join(have)}"


def _there(nodes: Sequence[Remote]) -> list[Remote]:
    return [node for node in nodes if node.facts is not None and not node.lost]


def _check(nodes: Sequence[Remote]) -> None:
    for node in nodes:
        if node.version != VERSION:
            raise UsageError(
                f"--launch: node {node.name} has autotune {node.version}, this machine"
                f" {VERSION}; install the same version on all nodes"
            )
        if node.refused:
            raise UsageError(f"node {node.name}: {node.refused}")


def _name_apart(nodes: Sequence[Remote]) -> None:
    """Give the last node a unique name."""
    last, names = nodes[-1], {node.name for node in nodes[:-1]}
    number, name = 2, last.name
    while last.name in names:
        last.name, number = f"{name}-{number}", number + 1
