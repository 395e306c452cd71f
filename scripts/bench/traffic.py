"""The traffic between a study and its nodes, in messages and bytes a second.

    .venv/bin/python scripts/bench/traffic.py [--nodes 2] [--seconds 20]

Agents run on this machine and dial over loopback, in TLS as between hosts. Each node has one rank
of a real group. All bytes of the study's sockets count, with handshakes and TLS. Traffic between
ranks is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared import ROOT, probing, run, table, wiring

from autotune.device import open_device
from autotune.measure.launch.launcher import Launcher
from autotune.measure.runner import Runner
from autotune.measure.testbed.cluster import DIAL_S, Cluster
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.wire import stream
from autotune.wire.stopping import Rule

RULE = Rule(
    warmup_steps=3, warmup_tolerance=1e9, warmup_limit_s=0.0, timed_steps=5, half_width=0.0,
    timed_limit_s=0.0,
)  # fmt: skip
DEADLINE_S = 120.0


@dataclass
class Count:
    """The traffic so far, both ways."""

    messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def copy(self) -> Count:
        return replace(self)


TOTAL = Count()


class Counted:
    """A socket whose bytes are counted."""

    def __init__(self, connected: Any) -> None:
        self._connected = connected

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._connected.recv(size)
        TOTAL.received_bytes += len(data)
        return data

    def sendall(self, data: bytes) -> None:
        TOTAL.sent_bytes += len(data)
        self._connected.sendall(data)


class CountedStream(stream.Stream):
    """A stream that counts its bytes."""

    def __init__(self, connected: Any, tls: Any = None) -> None:
        super().__init__(Counted(connected), tls)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        TOTAL.messages += 1
        super().send(data)

    def _frame(self, most_bytes: int) -> bytes | None:
        frame = super()._frame(most_bytes)
        TOTAL.messages += frame is not None
        return frame


class Agents(Launcher):
    """A launcher of agents on this machine."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes, interface=None)
        self._started: list[subprocess.Popen[str]] = []

    def address(self) -> str:
        return "127.0.0.1"

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        words = [sys.executable, "-P", "-m", "autotune.agent", "--driver", driver]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        for number in range(self.nodes):
            named = ["--key-file", str(key_file), "--node", f"n{number}"]
            self._started.append(subprocess.Popen([*words, *named], text=True, env=environment))
        return []

    def close(self) -> None:
        for process in self._started:
            process.wait()


def main(*, nodes: int = 2, seconds: float = 20.0) -> None:
    from autotune.measure.runner import channel

    setattr(channel, "Stream", CountedStream)  # noqa: B010 - of the study's side alone
    began = time.monotonic()
    cluster = Cluster(Agents(nodes), "cpu", allow_mixed=False, allow_busy=True, dial_s=DIAL_S)
    gathered_s = time.monotonic() - began
    gathering = TOTAL.copy()
    with tempfile.TemporaryDirectory() as logs:
        options = Options.of(
            world_size=nodes, depth=(2,), seq_len=(64,), micro_batch=(1,), zero=(0,),
            checkpointing=("none",),
        )  # fmt: skip
        space = cluster.space(options)
        (runner,) = cluster.runners(space, [wiring(Path(logs))])
        with closing(runner):
            rows = measured(runner, space.candidates[0], seconds)
    device = open_device("cpu").infos[0].name
    print(f"{nodes} nodes with a rank each, over loopback with TLS; {device}\n")
    rows.insert(0, ("agents dial", gathered_s, Count(), gathering))
    head = " | seconds | messages/s | sent bytes/s | received bytes/s"
    print(table(head, (_cells(*row) for row in rows)))


def measured(
    runner: Runner, candidate: Any, seconds: float
) -> list[tuple[str, float, Count, Count]]:
    """The phases of a study, with the traffic in each."""
    rows = []

    def timed(name: str, act: Any) -> None:
        before, began = TOTAL.copy(), time.monotonic()
        act()
        rows.append((name, time.monotonic() - began, before, TOTAL.copy()))

    def probe(least_s: float, *, fresh: bool = False) -> None:
        rule = replace(RULE, timed_least_s=least_s, timed_limit_s=least_s)
        job = probing(candidate, rule, fresh=fresh)
        result = runner.run(job, time.monotonic() + DEADLINE_S + least_s)
        assert result.verdict is Verdict.OK, result.reason

    timed("first group, with imports", lambda: probe(0.0))
    timed("nothing but beats", lambda: time.sleep(seconds))
    timed("a probe's steps", lambda: probe(seconds))
    timed("a fresh group", lambda: probe(0.0, fresh=True))
    return rows


def _cells(name: str, seconds: float, before: Count, after: Count) -> tuple[str, ...]:
    messages = (after.messages - before.messages) / seconds
    sent = (after.sent_bytes - before.sent_bytes) / seconds
    received = (after.received_bytes - before.received_bytes) / seconds
    return name, f"{seconds:.1f}", f"{messages:.1f}", f"{sent:,.0f}", f"{received:,.0f}"


if __name__ == "__main__":
    run(main)
