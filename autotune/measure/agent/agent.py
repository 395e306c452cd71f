"""An agent opens the devices that the study names, starts ranks, and tells how they end.

The main thread starts and collects processes: they die with the thread that started them
(prctl(2), PR_SET_PDEATHSIG). A second thread listens, and ends everything after a lease without a
message. A third one tells the study every second that this node is there.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from pynvml import NVMLError

from autotune.device import crowding, open_device
from autotune.device.cpu import cores, host_memory_bytes, host_oom_kills
from autotune.device.device import Device
from autotune.device.idle import busy
from autotune.errors import UsageError
from autotune.installed import VERSION
from autotune.measure.agent.scratch import Scratch
from autotune.measure.runner import extensions
from autotune.measure.runner.channel import Peer
from autotune.measure.runner.node import LocalNode
from autotune.measure.runner.process import RankProcess
from autotune.space.engines.software import software
from autotune.wire import agents
from autotune.wire.messages import Message

POLL_S = 0.1
LOG_BYTES = 2**18
"""Bytes of a process's log that the study gets, of its beginning and of its end."""
FIRST_LEASE_S = 60.0
UNASKED = "the study hung up at once: it has enough nodes, ended, or has another version"
END_S = 15.0
"""Seconds in which the main thread ends all processes."""
LOST = 5


class _GoneError(Exception):
    """The study is gone."""


class Agent:
    """Serves one study over one connection."""

    def __init__(self, peer: Peer, name: str, scratch: Scratch) -> None:
        self._peer = peer
        self._name = name
        self._scratch = scratch
        self._came: queue.SimpleQueue[Message | str] = queue.SimpleQueue()
        self._processes: dict[str, RankProcess] = {}
        self._logs: dict[str, Path] = {}
        self._told: set[str] = set()
        """Processes whose end the study knows."""
        self._preparing: dict[str, str] = {}
        """Engines, with the family of models."""
        self._in_use_bytes: list[int] = []
        self._over = threading.Event()
        self._device: Device | None = None
        self._here: LocalNode | None = None
        # Nodes that share a home must not share folders of running compilers.
        own = extensions.folder() / name
        os.environ.setdefault(extensions.VARIABLE, str(own))

    def serve(self) -> str:
        """Serve until the study ends. Returns why it ended otherwise; empty if the study did."""
        peer = self._peer
        peer.limit(FIRST_LEASE_S)
        peer.send(agents.Joined(name=self._name, version=VERSION, pid=os.getpid()))
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            while True:
                try:
                    message = self._came.get(timeout=POLL_S)
                except queue.Empty:
                    pass
                else:
                    if isinstance(message, str):
                        return message
                    self._handle(message)
                self._look()
        except _GoneError as error:
            return f"the study is gone: {error}"
        except Exception as error:
            with suppress(_GoneError):
                self._send(agents.Leaving(f"its agent failed: {type(error).__name__}: {error}"))
            raise
        except SystemExit as left:
            with suppress(_GoneError):
                self._send(agents.Leaving(f"its agent was ended, with exit code {left.code}"))
            raise
        finally:
            self._end()
            self._over.set()

    def _listen(self) -> None:
        asked = False
        try:
            while True:
                message = self._peer.receive()
                asked = asked or isinstance(message, agents.Serve)
                self._came.put(message)
        except EOFError:
            self._came.put("" if asked else UNASKED)
        except (OSError, ValueError) as error:
            self._came.put(f"the study is gone: {error}")
        self._kill()
        if not self._over.wait(END_S):  # the main thread is stuck
            os._exit(LOST)

    def _beat(self) -> None:
        with suppress(OSError, _GoneError):  # the listening thread sees the end
            while True:
                time.sleep(agents.BEAT_S)
                self._scratch.alive()
                self._send(self._state())

    def _state(self) -> agents.Beat:
        with suppress(NVMLError):  # then the last numbers stay
            if self._device is not None:
                self._in_use_bytes = list(self._device.in_use_bytes())
        return agents.Beat(self._in_use_bytes, host_oom_kills())

    def _send(self, message: Message) -> None:
        """Raises _GoneError if the study is gone."""
        try:
            self._peer.send(message)
        except OSError as error:
            raise _GoneError(str(error)) from error

    def _handle(self, message: Message) -> None:
        match message:
            case agents.Serve():
                self._peer.limit(message.lease_s)
                self._open(message.device)
            case agents.Prepare(engine=engine, family=family):
                self._preparing[engine] = family
            case agents.Run():
                self._run(message)
            case agents.Signal(token=token, number=number) if token in self._processes:
                self._processes[token].signal(signal.Signals(number))
            case agents.Collect(token=token) if token in self._processes:
                self._collect(token)
            case agents.Unforkable(why) if self._here is not None:
                self._here.give_up(why)
            case agents.Proven() if self._here is not None:
                self._here.succeeded()

    def _open(self, spec: str) -> None:
        try:
            device = self._device = open_device(spec)
        except UsageError as error:
            self._send(agents.Refused(str(error)))
            return
        processes, energy = device.other_processes(), device.energy()
        devices = [
            agents.NodeDevice(
                uuid=info.uuid,
                name=info.name,
                capacity_bytes=info.capacity_bytes,
                in_use_bytes=used_bytes,
                bf16=info.bf16,
                busy=busy(info, processes, used_bytes),
            )
            for info, used_bytes in zip(device.infos, device.in_use_bytes(), strict=True)
        ]
        facts = agents.Facts(
            kind=device.kind,
            devices=devices,
            fingerprint=device.fingerprint(),
            host_memory_bytes=host_memory_bytes(),
            cores=cores(),
            software=software(),
            energy_at=energy.at,
            energy_lack=energy.lack,
            address=self._peer.here,
            oom_kills=host_oom_kills(),
        )
        self._send(facts)

    @property
    def _node(self) -> LocalNode:
        if self._here is None:
            assert self._device is not None, "`Serve` comes first"
            environment = self._device.rank_environment(1)
            if said := crowding.remark(environment):
                self._say(said)
            self._here = LocalNode(
                self._device,
                self._scratch.folder,
                environment,
                self._say,
                name=self._name,
                address=self._peer.here,
            )
        return self._here

    def _run(self, asked: agents.Run) -> None:
        log = self._scratch.folder / Path(asked.log).name
        process = self._node.start(asked.task, asked.dial, log)
        self._processes[asked.token], self._logs[asked.token] = process, log
        self._send(agents.Started(token=asked.token, pid=process.pid))

    def _look(self) -> None:
        """Tell the study what changed."""
        for token, process in self._processes.items():
            if token not in self._told and (code := process.exit_code()) is not None:
                self._told.add(token)
                self._send(self._state())  # with the kernel's present count
                self._send(agents.Ended(token=token, code=code))
            if said := process.limit_log():
                self._say(said)
        for engine, family in list(self._preparing.items()):
            self._node.prepare(engine, family, lambda: False, time.monotonic())
            if self._node.ready(engine):
                del self._preparing[engine]
                self._send(agents.Prepared(engine=engine))

    def _collect(self, token: str) -> None:
        process, log = self._processes.pop(token), self._logs.pop(token)
        process.reap()
        code = process.exit_code()
        if token not in self._told and code is not None:
            self._send(agents.Ended(token=token, code=code))
        self._told.discard(token)
        self._send(self._state())  # first, the present state of the devices
        self._send(agents.Collected(token=token, log=_text(log)))
        log.unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        self._send(agents.Said(text))

    def _kill(self) -> None:
        for process in list(self._processes.values()):
            process.signal(signal.SIGKILL)
        if self._here is not None:
            self._here.kill()

    def _end(self) -> None:
        """No process of the agent is left when this returns."""
        self._peer.close()  # first: the end of a rank now must not count against its candidate
        self._kill()
        for process in self._processes.values():
            process.reap()
        self._processes.clear()
        if self._here is not None:
            self._here.close()


def _text(log: Path) -> str:
    """The text of `log`, or its beginning and its end."""
    try:
        data = log.read_bytes()
    except OSError:
        return ""
    if len(data) > 2 * LOG_BYTES:
        cut = f"\n[{len(data) - 2 * LOG_BYTES} bytes were cut out here]\n".encode()
        data = data[:LOG_BYTES] + cut + data[-LOG_BYTES:]
    return data.decode(errors="replace")
