"""Programs that run with the hook, without a launcher; and their messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from textwrap import dedent
from typing import Any

from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.script.launches import HOOK
from autotune.wire.hook import Left, Seen
from autotune.wire.messages import Message
from autotune.wire.ranks import Hello
from tests.support.programs import ROOT

LIMIT_S = 120.0
WITH_COMPILER = ("compile(", "checkpoint(", "distributed.fsdp", "distributed.checkpoint",
                 "transformers", "lightning")  # fmt: skip
"""Programs with one of these use torch's compiler."""


@dataclass
class Told:
    """All messages of one process."""

    messages: list[Message] = field(default_factory=list)

    @property
    def hello(self) -> Hello:
        assert isinstance(self.messages[0], Hello)
        return self.messages[0]

    @property
    def seen(self) -> list[Seen]:
        return [each for each in self.messages if isinstance(each, Seen)]

    @property
    def left(self) -> Left:
        assert isinstance(self.messages[-1], Left)
        return self.messages[-1]

    @property
    def micro_steps(self) -> list[int]:
        """Of each step after the first."""
        return [step.micro_steps for seen in self.seen for step in seen.steps]

    @property
    def tokens(self) -> list[int | None]:
        return [step.tokens for seen in self.seen for step in seen.steps]

    @property
    def shapes(self) -> list[list[list[int]]]:
        """Of each backward pass that was looked at, after the first step."""
        return [each for seen in self.seen for step in seen.steps for each in step.shapes]


class Watched:
    """A program in a process of its own, in `folder`."""

    def __init__(self, folder: Path, program: str, **variables: str) -> None:
        file = folder / "program.py"
        less = "alone" if any(word in program for word in WITH_COMPILER) else "light"
        file.write_text(f"import {less}\n{dedent(program)}", encoding="utf-8")
        self._channel = Channel()
        dial = self._channel.dial(0, child=False)
        paths = [str(HOOK), str(ROOT), str(Path(__file__).parent), variables.pop("MORE_PATH", "")]
        environment = os.environ | {
            "AUTOTUNE_DIAL": f"{dial.host}:{dial.port}:{dial.key}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(file)], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.told: list[Told] = []
        self._peers: dict[Peer, Told] = {}

    def pump(self, limit_s: float) -> None:
        """Take over what is said within `limit_s`, at most once of each process."""
        listened: list[Any] = [self._channel, *self._peers]
        for ready in wait(listened, limit_s):
            if isinstance(ready, Peer):
                self._receive(ready)
            elif isinstance(peer := self._channel.accept(), Peer):
                self.told.append(Told())
                self._peers[peer] = self.told[-1]
                self._receive(peer)

    def hang_up(self) -> None:
        """No process of the program is listened to any more."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def ended(self) -> tuple[int, str, str]:
        """Its exit code and what it printed, after all that its processes said."""
        deadline = time.monotonic() + LIMIT_S
        while (self.process.poll() is None or self._peers) and time.monotonic() < deadline:
            self.pump(0.05)
        self.close()
        out, error = self.process.communicate()
        return self.process.returncode, out, error

    def close(self) -> None:
        self.process.kill()
        self._channel.close()
        self.hang_up()

    def _receive(self, peer: Peer) -> None:
        try:
            for message in peer.arrived():
                self._peers[peer].messages.append(message)
        except EOFError:
            del self._peers[peer]
            peer.close()


def watched(folder: Path, program: str, **variables: str) -> tuple[list[Told], int, str]:
    """What the processes of a program said, by when they dialled; its exit code, and stdout."""
    run = Watched(folder, program, **variables)
    try:
        code, out, error = run.ended()
    finally:
        run.close()
    sys.stderr.write(error)
    return run.told, code, out
