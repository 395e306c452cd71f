"""One rank: dial the study, build the engine, run probes until told to stop.

For `Describe` or `Count` the process is a helper: it answers once and exits.

When the study's socket ends, this process ends with everything it started. A thread of its own
notices the end, so a rank inside a long step exits at once, too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from autotune.wire import stream
from autotune.wire.cores import keep_to_cores
from autotune.wire.dial import Dial
from autotune.wire.helpers import Count, Describe
from autotune.wire.messages import (
    MAX_MESSAGE_BYTES,
    Message,
    WireError,
    decode,
    decode_dial,
    encode,
)
from autotune.wire.ranks import Entered, Fault, Hello, Probe, Ready, Start, Stop
from autotune.wire.stopping import Phase

_PR_SET_PDEATHSIG = 1


class Link:
    """The channel to the study: messages out, messages in, and its end."""

    def __init__(self, dial: Dial) -> None:
        key = bytes.fromhex(dial.key)
        self._stream = stream.dial(dial.host, dial.port, key, dial.certificate)
        self._received: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: Message) -> None:
        self._stream.send(encode(message))

    def receive(self) -> Message:
        """The next message; waits for it."""
        return self._received.get()

    def _listen(self) -> None:
        while True:
            try:
                self._received.put(decode(self._stream.receive(MAX_MESSAGE_BYTES)))
            except BaseException as end:  # noqa: BLE001 - without the study there is nothing to do
                print(f"the study is gone: {end!r}", file=sys.stderr, flush=True)
                end_session()


def end_session() -> NoReturn:
    """Leave at once, with every process of this rank's session."""
    if os.getpgrp() == os.getsid(0):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def die_with_parent() -> None:
    """Let the kernel kill this rank and its children if the study dies. The rank may be stopped,
    or inside a C call."""
    if sys.platform != "linux":
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = os.getpid()
    # SIGCONT also wakes a guard that was stopped together with the rank.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    if os.fork() == 0:
        prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
        while os.getppid() == rank:
            signal.sigwait({signal.SIGCONT})
        end_session()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})


class Rank:
    """The phase of this process, so that an error can name it."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.phase = Phase.IMPORT
        self.explain: Callable[[BaseException, Phase], Fault] = _unexplained

    def send(self, message: Message) -> None:
        if isinstance(message, Entered):
            self.phase = message.phase
        self.link.send(message)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage among what is imported: that takes a fifth of the time, for 6 MiB."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def serve(rank: Rank) -> None:
    """Build the engine, then probe until the study says stop; or answer once as a helper."""
    rank.send(Entered(Phase.IMPORT))
    with uncollected():
        from probes import worker

    start = rank.link.receive()
    if isinstance(start, Count):
        from probes import faults
        from probes.count import count

        rank.explain = partial(faults.fault, device_kind="cpu", peaks=None)
        rank.send(count(start))
        return
    if isinstance(start, Describe):
        from probes.describe import describe

        rank.send(describe(start))
        return
    if not isinstance(start, Start):
        raise WireError(f"expected Start, Describe or Count, got {type(start).__name__}")
    meter = worker.meter_for(start)
    rank.explain = partial(worker.fault, device_kind=start.device_kind, meter=meter)
    live = worker.set_up(start, rank.number, meter, rank.send)
    rank.send(Ready(live.engine.parameters, worker.versions()))
    while not isinstance(request := rank.link.receive(), Stop):
        if not isinstance(request, Probe):
            raise WireError(f"expected Probe or Stop, got {type(request).__name__}")
        report = live.probe(request, rank.send)
        rank.send(Entered(Phase.DONE))
        rank.send(report)


def run(dial: Dial, does: Callable[[Rank], None] | None = None) -> NoReturn:
    """Serve the study at `dial` by the function `does`, by default as a rank.

    Every error is reported as a `Fault` and ends the rank. After an out-of-memory error a process
    must not measure again.
    """
    if dial.child:
        die_with_parent()
    keep_to_cores()
    rank = Rank(Link(dial), dial.rank)
    rank.send(Hello(dial.rank, os.getpid(), socket.gethostname(), dial.token))
    try:
        (does or serve)(rank)
    except BaseException as error:  # noqa: BLE001 - it is said, and the rank ends
        fault = rank.explain(error, rank.phase)
        with suppress(OSError):  # a full disk
            traceback.print_exc()
            sys.stderr.flush()
        rank.send(fault)  # the study ends this process as soon as it knows
        os._exit(1)
    os._exit(0)  # torch's own teardown can hang if peers are gone


def main() -> None:
    """Serve the study that the first line on stdin names."""
    run(decode_dial(sys.stdin.buffer.readline()))


def _unexplained(error: BaseException, phase: Phase) -> Fault:
    """A fault for `error` before torch is imported."""
    text = f"{type(error).__name__}: {error}"
    return Fault(cause="crashed", phase=phase, error=text, traceback=traceback.format_exc())


if __name__ == "__main__":
    main()
