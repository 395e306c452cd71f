"""A node whose agent has dialled, as the study sees it."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from autotune.measure.runner import StopRequestedError
from autotune.measure.runner.channel import Peer
from autotune.measure.runner.process import RankProcess
from autotune.wire import agents
from autotune.wire.dial import Dial
from autotune.wire.messages import Message, WireError

LEASE_S = 6.0
"""An agent that hears nothing for so long kills its ranks."""
LOST_S = 7.0
"""A node that says nothing for so long is lost."""
REAP_S = 10.0
POLL_S = 0.05


class Remote:
    """The `Node` behind one connection. Its threads end with the connection."""

    refreshed_s = agents.BEAT_S

    def __init__(
        self,
        peer: Peer,
        joined: agents.Joined,
        device: str,
        note: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """It opens `device` there. A thread tells `on_lost` why it is lost, unless closed."""
        self.name = joined.name
        self.version = joined.version
        self.address = ""
        self.uuids: tuple[str, ...] = ()
        self.energy_at = ""
        self.facts: agents.Facts | None = None
        self.refused = ""
        """Why it cannot serve the study."""
        self.lost = ""
        self._losing = threading.Lock()
        self._peer = peer
        self._note = note
        self._on_lost = on_lost
        self._heard = time.monotonic()
        self._beat = agents.Beat()
        self._ready: set[str] = set()
        self._processes: dict[str, _Process] = {}
        self._gave_up = self._proven = self._hung_up = False
        peer.limit(LOST_S)
        self.send(agents.Serve(device=device, lease_s=LEASE_S))
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._keep_lease, daemon=True).start()

    def heard_since(self, moment: float) -> bool:
        return self._heard > moment

    def in_use_bytes(self) -> tuple[int, ...]:
        return tuple(self._beat.in_use_bytes)

    def oom_kills(self) -> int:
        return self._beat.oom_kills

    def ready(self, engine: str) -> bool:
        return engine in self._ready or bool(self.lost)

    def prepare(self, engine: str, family: str, stop: Callable[[], bool], deadline: float) -> None:
        self.send(agents.Prepare(engine=engine, family=family))
        while not self.ready(engine) and time.monotonic() < deadline:
            if stop():
                raise StopRequestedError
            time.sleep(POLL_S)

    def start(self, task: agents.Task, dial: Dial | None, log: Path) -> RankProcess:
        token = dial.token if dial is not None else secrets.token_hex(8)
        process = self._processes[token] = _Process(self, token, log)
        self.send(agents.Run(token=token, task=task, dial=dial, log=log.name))
        return process

    def succeeded(self) -> None:
        if not self._proven:
            self._proven = True
            self.send(agents.Proven())

    def give_up(self, why: str) -> bool:
        if self._proven or self._gave_up:
            return False
        self._gave_up = True
        self.send(agents.Unforkable(why))
        return True

    def kill(self, why: str = "") -> None:
        """End the connection: its agent kills its processes and leaves."""
        if why:
            self._lose(why)
        self._leave("the study ended")
        self._peer.close()

    def close(self) -> None:
        """Hang up: its agent does so, too. A silent one is lost."""
        if not self.lost:
            self._hung_up = True
            self._peer.hang_up()
            self._listener.join(LOST_S + agents.BEAT_S)
        self.kill()

    def send(self, message: Message) -> None:
        with suppress(OSError):  # the listening thread sees it
            self._peer.send(message)

    def forget(self, token: str) -> None:
        self._processes.pop(token, None)

    def _keep_lease(self) -> None:
        while not self.lost:
            self.send(agents.Beat())
            time.sleep(agents.BEAT_S)

    def _listen(self) -> None:
        try:
            while True:
                message = self._peer.receive()
                self._heard = time.monotonic()
                self._take(message)
        except TimeoutError:
            why = f"no sign of it for {LOST_S:.0f} s"
        except (EOFError, OSError) as error:
            why = "" if self._hung_up else f"its agent is gone ({error})"
        except WireError as error:
            why = f"its agent sent an invalid message: {error}"
        self.kill(why)
        for process in list(self._processes.values()):
            process.collected.set()

    def _lose(self, why: str) -> None:
        if self._leave(f"node {self.name} was lost: {why}"):
            self._on_lost(self.lost)

    def _leave(self, why: str) -> bool:
        """Note its end. True for the first of several threads."""
        with self._losing:
            first = not self.lost
            self.lost = self.lost or why
        return first

    def _take(self, message: Message) -> None:
        match message:
            case agents.Beat():
                if len(message.in_use_bytes) == len(self.uuids):  # sent after it opened devices
                    self._beat = message
            case agents.Facts():
                self.uuids = tuple(device.uuid for device in message.devices)
                self.energy_at, self.address = message.energy_at, message.address
                in_use_bytes = [device.in_use_bytes for device in message.devices]
                self._beat = agents.Beat(in_use_bytes, message.oom_kills)
                self.facts = message
            case agents.Refused(reason):
                self.refused = reason
            case agents.Prepared(engine=engine):
                self._ready.add(engine)
            case agents.Leaving(why):
                self._lose(why)
            case agents.Said(text):
                self._note(f"{self.name}: {text}")
            case agents.Started() | agents.Ended() | agents.Collected():
                process = self._processes.get(message.token)
                if process is not None:
                    process.take(message)
            case _:
                raise WireError(f"{type(message).__name__} out of place")


class _Process:
    def __init__(self, node: Remote, token: str, log: Path) -> None:
        self.pid = 0
        self.collected = threading.Event()
        self._node = node
        self._token = token
        self._log = log
        self._code: int | None = None

    def exit_code(self) -> int | None:
        if self._code is None and self._node.lost:
            return -signal.SIGKILL  # by its agent, or with it
        return self._code

    def lives(self) -> bool:
        return self.exit_code() is None

    def limit_log(self) -> str:
        return ""  # its agent does it, and notes it

    def signal(self, number: signal.Signals) -> None:
        if self._code is None or number == signal.SIGKILL:  # its session may have processes left
            self._node.send(agents.Signal(token=self._token, number=number))

    def reap(self) -> None:
        """Fetch its log, unless the node is lost."""
        self._node.send(agents.Collect(token=self._token))
        self.collected.wait(0 if self._node.lost else REAP_S)
        self._node.forget(self._token)

    def take(self, message: agents.Started | agents.Ended | agents.Collected) -> None:
        match message:
            case agents.Started():
                self.pid = message.pid
            case agents.Ended():
                self._code = message.code
            case agents.Collected():
                with suppress(OSError):  # the study tells of a full disk
                    self._log.write_text(message.log, encoding="utf-8")
                self.collected.set()
            case _:
                assert_never(message)
