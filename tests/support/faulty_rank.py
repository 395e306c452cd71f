"""A real rank that misbehaves once, by the variable FAULT: `<what>@<phase>:<rank>`.

Runs the product's own worker; only the moment of the fault is put into it. `what` is one of the
functions below, `phase` one of import, build, warmup or timed. With an engine's name as its
argument it is a fork server of such ranks.
"""

from __future__ import annotations

import itertools
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import probes.__main__ as rank_main
from autotune.wire.ranks import Entered
from probes import forkserver


def hang() -> None:
    time.sleep(3600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(7)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def error() -> None:
    raise ZeroDivisionError("a bug in the user's model")


def unsupported() -> None:
    from probes.faults import UnsupportedError

    raise UnsupportedError("not by this engine")


def oom() -> None:
    import torch

    torch.ones(2**36, device="cuda" if torch.cuda.is_available() else "cpu")


def garbage() -> None:
    send_raw(b"\x80\x04 this is no message")
    hang()


def old_version() -> None:
    send_raw(b'{"v":0,"type":"Ready","body":{}}')
    hang()


def huge() -> None:
    # The header alone: a message of 1 GiB is announced.
    os.write(LINKS[0]._stream.fileno(), struct.pack("!I", 2**30))
    hang()


def cut_short() -> None:
    os.write(LINKS[0]._stream.fileno(), struct.pack("!I", 100) + b"{")
    hang()


def child() -> None:
    """Leaves a process of the rank's session behind."""
    if os.fork() == 0:
        time.sleep(3600)


def chatter() -> None:
    """Fills the log without end, and works on once there are 4 MiB."""
    much = threading.Event()

    def print_on() -> None:
        for line in itertools.count():
            print(f"line {line} of what a rank says")
            if line == 2**17:
                much.set()

    threading.Thread(target=print_on, daemon=True).start()
    much.wait()


def litter() -> None:
    tempfile.mkstemp(prefix="left")


def send_raw(data: bytes) -> None:
    LINKS[0]._stream.send(data)


LINKS: list[Any] = []
FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        hang, stop, leave, killed, error, oom, garbage, old_version, huge, cut_short, child,
        chatter, litter, unsupported,
    )
}  # fmt: skip


class FaultyRank(rank_main.Rank):
    """Carries the fault out right after it announced the phase."""

    def __init__(self, link: Any, number: int) -> None:
        super().__init__(link, number)
        LINKS.append(link)

    def send(self, message: Any) -> None:
        super().send(message)
        what, _, where = os.environ.get("FAULT", "").partition("@")  # each fork has its own
        if isinstance(message, Entered) and where == f"{message.phase}:{self.number}":
            FAULTS[what]()


if __name__ == "__main__":
    rank_main.Rank = FaultyRank  # type: ignore[misc]
    (forkserver if len(sys.argv) > 1 else rank_main).main()
