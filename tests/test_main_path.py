"""From a command to the message to a rank: few calls, so that the path can be read."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from autotune.commands.app import main
from autotune.measure.runner import forks, local
from autotune.measure.runner.channel import Peer
from autotune.wire.messages import Message
from autotune.wire.ranks import Probe
from tests.support.programs import QUICK_RANK, ROOT

MOST_CALLS = 8
PRODUCT = str(ROOT / "autotune")
ENTRANCES = {"__main__.py", "app.py"}
"""What finds the command and calls it."""


def calls(frame: FrameType | None) -> list[str]:
    """The product's functions that wait for `frame`, the first called first."""
    found = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PRODUCT) and Path(path).name not in ENTRANCES:
            found.append(f"{Path(path).relative_to(ROOT)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def test_from_a_command_to_the_message_to_a_rank_are_at_most_eight_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[list[str]] = []
    sent: list[list[str]] = []
    submit, send = ThreadPoolExecutor.submit, Peer.send

    def watched_submit(self: Any, *work: Any, **how: Any) -> Any:
        submitted.append(calls(sys._getframe()))
        return submit(self, *work, **how)

    def watched_send(self: Peer, message: Message) -> None:
        if isinstance(message, Probe):
            # A slot has a thread of its own, which goes on from where its work was submitted.
            sent.append([*submitted[-1], *calls(sys._getframe()), "Peer.send"])
        send(self, message)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", watched_submit)
    monkeypatch.setattr(Peer, "send", watched_send)
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)
    monkeypatch.setattr(forks, "SERVER", QUICK_RANK)
    argv = ["--device", "cpu", "--trials", "1", "--depth", "1", "--seq-len", "32"]
    argv += [
        "--micro-batch",
        "1",
        "--checkpointing",
        "none",
        "--budget",
        "1m",
        "--out",
        str(tmp_path / "study"),
    ]
    assert main(argv) == 0

    longest = max(sent, key=len)
    assert len(longest) <= MOST_CALLS, longest
