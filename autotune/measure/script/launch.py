"""One launch of a script: its processes, their messages, and their ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

from autotune.device.cpu import host_oom_kills
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.extensions import remove_locks
from autotune.measure.runner.local import SUPERVISE, LocalProcess, spawn, temporary_folder
from autotune.measure.script.files import OUT
from autotune.measure.script.seen import Process, Ranks
from autotune.space.command import PREFIX
from autotune.wire.cores import CpuTimes
from autotune.wire.hook import Left, Seen
from autotune.wire.messages import Message, WireError
from autotune.wire.ranks import Hello
from autotune.wire.reports import InPhase, Peaks, on_smallest

END_S = 5.0
LAST_WORDS_S = 1.0
"""Seconds for last messages after the command's end."""
SCRATCH_BYTES = 20 * 2**30
SCRATCH_SHARE = 0.5
"""A launch ends if it fills this share of the disk's free space, or `SCRATCH_BYTES` if less."""
SCRATCH_EVERY_S = 2.0
ALL_CORES = range(psutil.cpu_count() or 1)
HIDDEN_S, HIDDEN_EVERY_S = 8.0, 2.0
"""Seconds with torch loaded before its process must have dialled; and the interval of checks."""


class Launch:
    def __init__(
        self, channel: Channel, request: dict[str, Any], log: Path, in_use: tuple[int, ...],
        capacities: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`capacities` are those of the ranks' devices, where they differ."""
        self.log = log
        self.began = time.monotonic()
        self.processes: list[Process] = []
        self.lively = time.monotonic()
        """Time of its last sign of life."""
        self.first_step: float | None = None
        self.code: int | None = None
        """The command's exit code, once it ended."""
        self._channel = channel
        self._capacities = capacities
        self.in_use = in_use
        """Bytes of others on each device when it began."""
        self._oom_kills = host_oom_kills()
        self._killed: list[psutil.Process] = []
        """Processes below the supervisor when `end` killed them."""
        self._ended_at: float | None = None
        self._mark = f"{PREFIX}DIAL={request['environment'][f'{PREFIX}DIAL']}".encode()
        self._temporary = request["environment"]["TMPDIR"]
        self._out = temporary_folder(log) / OUT
        free = shutil.disk_usage(self._out).free
        self._most_bytes = min(SCRATCH_BYTES, int(SCRATCH_SHARE * free))
        self._looked = self._looked_in = time.monotonic()
        self._hidden_since: float | None = None
        reader, self._writer = os.pipe()
        try:
            self._process: LocalProcess = spawn(SUPERVISE, reader, log, {})
        finally:
            os.close(reader)
        self._began = time.time()
        with os.fdopen(os.dup(self._writer), "wb") as pipe:
            pipe.write(json.dumps(request).encode() + b"\n")

    @property
    def ended(self) -> bool:
        """Whether the command ended, and its processes had time for their last words."""
        return self._ended_at is not None and time.monotonic() - self._ended_at > LAST_WORDS_S

    def pump(self, timeout: float) -> None:
        """Handle messages for `timeout` seconds."""
        peers = {process.peer: process for process in self.processes if not process.gone}
        for source in wait([self._channel, *peers], timeout):  # type: ignore[list-item]
            if isinstance(source, Channel):
                self._accept()
            elif isinstance(source, Peer):
                self._receive(peers[source])
        if self.code is None and (code := self._process.exit_code()) is not None:
            self.code, self._ended_at = code, time.monotonic()

    @property
    def backwards(self) -> int:
        """Backward passes of the process with the most."""
        return max((p.latest.backwards for p in self.processes if p.latest), default=0)

    @property
    def stepped(self) -> int:
        """Optimizer steps of the process with the most."""
        return max((p.latest.ended for p in self.processes if p.latest), default=0)

    def pids(self) -> list[int]:
        """Ids of its processes that load torch."""
        return [process.pid for process in self.processes]

    def hidden(self) -> bool:
        """Whether torch runs for a while in a process without the hook."""
        now = time.monotonic()
        if self.processes or now - self._looked_in < HIDDEN_EVERY_S:
            return False
        self._looked_in = now
        if not any(_maps_torch(process.pid) for process in self._below()):
            return False
        self._hidden_since = self._hidden_since or now
        return now - self._hidden_since > HIDDEN_S

    def limit_log(self) -> str:
        return self._process.limit_log()

    def oom_kills(self) -> int:
        """Number of processes that the kernel killed for memory since the launch."""
        return host_oom_kills() - self._oom_kills

    def overflow(self) -> int | None:
        """Bytes in the scratch folder if they are too many; else None."""
        now = time.monotonic()
        if now - self._looked < SCRATCH_EVERY_S:
            return None
        self._looked = now
        size = sum(
            entry.stat().st_blocks * 512
            for entry in self._out.rglob("*")
            if not entry.is_symlink() and entry.exists()
        )
        return size if size > self._most_bytes else None

    def said(self) -> str:
        with suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def times(self) -> CpuTimes:
        """Processor time so far, of the machine and of all processes of the launch."""
        own_s = 0.0
        for process in self._below():
            with suppress(psutil.Error):
                mine = process.cpu_times()
                own_s += mine.user + mine.system + mine.children_user + mine.children_system
        return CpuTimes.now(ALL_CORES, own_s)

    def rank_peaks(self, ranks: Ranks) -> list[Peaks]:
        """The peaks of each rank that told some, as on the smallest device."""
        return [self._whole(seen, seen.peaks) for process in ranks.all
                if (seen := process.latest) is not None and seen.peaks is not None]  # fmt: skip

    def peaks(self, ranks: Ranks, retries_before: int) -> Peaks:
        """The largest peaks of any rank; host memory is that of all processes now."""
        host = 0
        for below in self._below():
            with suppress(psutil.Error):
                host += below.memory_full_info().pss
        largest = Peaks.largest(self.rank_peaks(ranks))
        retries = max(0, largest.alloc_retries - retries_before)
        return replace(largest, alloc_retries=retries, host_bytes=max(host, largest.host_bytes))

    def phases(self, ranks: Ranks) -> dict[str, InPhase]:
        """The largest peaks of each phase, over all ranks."""
        return InPhase.largest([
            {name: replace(found, peaks=self._whole(seen, found.peaks))
             for name, found in seen.phases.items()}
            for process in ranks.all if (seen := process.latest) is not None
        ])  # fmt: skip

    @property
    def in_phase(self) -> bool:
        """Whether any of its processes evaluates or saves now, or has made no step since."""
        return any(p.latest is not None and p.latest.phase for p in self.processes if not p.gone)

    def _whole(self, seen: Seen, peaks: Peaks) -> Peaks:
        """`peaks` with the launch's device memory outside the allocator, `on_smallest` device."""
        return on_smallest(self._own(seen, peaks), self._capacities, seen.rank)

    def _own(self, seen: Seen, peaks: Peaks) -> Peaks:
        before = self.in_use[seen.rank % len(self.in_use)]
        outside = max(0, seen.used_bytes - before) if seen.used_bytes else 0
        return replace(peaks, device_bytes=peaks.device_bytes + outside)

    def rank_bytes(self, ranks: Ranks) -> list[int]:
        """Device peak of each rank, where capacities differ."""
        told = sorted((p.latest for p in ranks.all if p.latest), key=lambda seen: seen.rank)
        each = [self._own(seen, seen.peaks).device_bytes for seen in told if seen.peaks]
        return each if self._capacities else []

    def end(self) -> None:
        """End all processes of the launch, and remove its temporary files."""
        if self._writer < 0:
            return
        writer, self._writer = self._writer, -1
        self._killed = self._below()
        os.close(writer)  # ends the supervisor, and all below it
        deadline = time.monotonic() + END_S
        while self._process.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process.signal(signal.SIGKILL)
        while self._kill_marked() and time.monotonic() < deadline + END_S:
            time.sleep(0.01)
        self._process.reap()
        remove_locks(os.environ, self._began)
        shutil.rmtree(self._temporary, ignore_errors=True)
        for process in self.processes:
            process.close()
        self._channel.close()

    def lives(self) -> bool:
        """Whether a process that `end` killed still holds memory."""
        return self._process.lives() or any(map(_lives, self._killed))

    def _below(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _kill_marked(self) -> bool:
        """Kill processes with this launch's address, and return whether there were any."""
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark in (folder / "environ").read_bytes():
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
        return found

    def _accept(self) -> None:
        peer = self._channel.accept()
        if peer is None:
            return
        with suppress(WireError):
            hello = peer.receive()
            if isinstance(hello, Hello):
                self.lively = time.monotonic()
                self.processes.append(Process(pid=hello.pid, peer=peer))
                self._receive(self.processes[-1])
                return
        peer.close()

    def _receive(self, process: Process) -> None:
        try:
            for message in process.peer.arrived():
                self._take(process, message)
        except (EOFError, WireError):
            process.close()

    def _take(self, process: Process, message: Message) -> None:
        if isinstance(message, Left):
            process.left = message
        elif isinstance(message, Seen) and process.told(message):
            self.lively = time.monotonic()
            if message.steps and self.first_step is None:
                self.first_step = time.monotonic() - sum(each.step_s for each in message.steps)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _maps_torch(pid: int) -> bool:
    with suppress(OSError):
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False
