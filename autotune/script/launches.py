"""Probes of a user's own script: each is a launch of its own, watched from inside and out."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

from autotune.device.cpu import host_oom_kills
from autotune.device.device import Device
from autotune.errors import ModelError
from autotune.outcome import Verdict
from autotune.predict.trace import Trace
from autotune.runner import Job, Result, StopRequestedError
from autotune.runner.channel import Channel, Peer
from autotune.runner.group import POLL_S, phase_deadlines
from autotune.runner.local import SUPERVISE, LocalProcess, spawn, temporary_folder
from autotune.script.command import PREFIX, Command
from autotune.script.files import OUT, Files
from autotune.script.seen import Mismatch, Process, Ranks
from autotune.space.axes import alloc_conf
from autotune.space.candidate import Build, Candidate
from autotune.space.space import Space
from autotune.units import gib
from autotune.wire import messages
from autotune.wire.energy import Counters, Energy
from autotune.wire.faults import DEVICE_MEMORY, HOST_MEMORY
from autotune.wire.messages import Conditions, Hello, Left, Peaks, Report, Seen, WireError
from autotune.wire.stopping import Phase, Steps

HOOK = Path(__file__).parents[2] / "probes" / "hook"
END_S = 5.0
LAST_WORDS_S = 1.0
"""After the command ended, how long its processes' last messages may take."""
SCRATCH_BYTES = 20 * 2**30
SCRATCH_SHARE = 0.5
"""Of the disk's free space, that a launch may fill before it is ended; or those bytes, if less."""
SCRATCH_EVERY_S = 2.0
CHECKED_STEPS = 2
"""After so many steps, what ran is compared with what was asked for."""
LAST_LINES = 20
HIDDEN_S, HIDDEN_EVERY_S = 8.0, 2.0
"""Torch is loaded for so long before a process of it has to have dialled."""
ENDLESS = 64
"""Backward passes of one micro-step without an optimizer's step, that show that there is none."""
HEEDLESS = 2
"""Different values of an axis for which the script ran one and the same: it pays no heed to it."""


class Launches:
    """The `Runner` of a script. Nothing is kept alive between probes."""

    live_build: Build | None = None

    def __init__(
        self,
        *,
        command: Command,
        device: Device,
        environment: Mapping[str, str],
        space: Space,
        files: Files,
        logs: Path,
        seed: int,
        stop: Callable[[], bool],
        on_phase: Callable[[Phase, int], None],
        note: Callable[[str], None],
        budget_s: float = math.inf,
    ) -> None:
        self._command = command
        self._device = device
        self._environment = dict(environment)
        self._space = space
        self._files = files
        self._logs = logs
        self._seed = seed
        self._stop = stop
        self._on_phase = on_phase
        self._note = note
        self._deadline_s = phase_deadlines(budget_s)
        self._launches = _last_launch(logs)
        self._launch: _Launch | None = None
        self._measured = False
        self._got: dict[str, dict[int, int]] = {}
        """By axis: what was asked for, and what ran instead."""

    def run(self, job: Job, deadline: float) -> Result:
        self._launches += 1
        began = time.monotonic()
        launch = self._launch = self._start(job)
        try:
            result = self._watch(launch, job, deadline)
        finally:
            self._launch = None
            launch.end()
        self._measured |= result.report is not None
        return replace(result, group_start_s=(launch.first_step or time.monotonic()) - began)

    def trace(self, space: Space, limit_s: float) -> Trace | None:
        return None  # nobody knows its model before it runs

    def retire(self, until: float) -> None:
        pass

    def kill(self) -> None:
        if self._launch is not None:
            self._launch.end()

    def close(self) -> None:
        self.kill()

    def _start(self, job: Job) -> _Launch:
        log = self._logs / f"launch{self._launches:03d}.log"
        folder = temporary_folder(log)
        self._files.write(job.candidate, folder)
        paths = self._files.paths(folder)
        Path(paths["out"]).mkdir(exist_ok=True)
        workload = self._space.workload
        variables, words = self._command.filled(job.candidate, workload, self._seed, paths)
        channel = Channel()
        dial = channel.dial(0, child=False)
        environment = (
            variables
            | self._environment
            | {
                f"{PREFIX}DIAL": f"{dial.host}:{dial.port}:{dial.key}",
                f"{PREFIX}CAPACITY_BYTES": str(self._space.limits.capacity_bytes),
                f"{PREFIX}DEVICE_KIND": self._device.kind,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")])
                ),
            }
        )
        if conf := alloc_conf(job.candidate.allocator):
            environment["PYTORCH_ALLOC_CONF"] = conf
        # Short: a loader's processes open sockets there, whose paths may have 107 characters.
        environment["TMPDIR"] = tempfile.mkdtemp(prefix="at-")
        request: dict[str, Any] = {
            "argv": words,
            "folder": str(self._command.folder),
            "environment": environment,
            "scratch": [str(folder), environment["TMPDIR"]],
        }
        return _Launch(channel, request, log, self._device.in_use_bytes())

    def _watch(self, launch: _Launch, job: Job, deadline: float) -> Result:
        told = [name for name in ("micro_batch", "seq_len", "grad_accum", "tokens_per_batch")
                if self._command.says(name)]  # fmt: skip
        ranks_of = self._device.energy().counters[: self._space.workload.world_size]
        timing = _Timing(Steps(job.rule, job.needed_step_s), launch, ranks_of)
        self._on_phase(Phase.IMPORT, 0)
        while True:
            if self._stop():
                raise StopRequestedError
            launch.pump(POLL_S)
            ranks = Ranks(launch.processes, job.candidate, told)
            if (failed := self._out_of_memory(launch)) is not None:
                return failed
            if ranks.made >= CHECKED_STEPS:
                world_size = self._space.workload.world_size
                if (found := ranks.mismatch(job.grad_accum, world_size)) is not None:
                    return self._refused(found, job.candidate)
            phase = timing.feed(ranks)
            self._on_phase(phase or self._phase(launch), ranks.made)
            if timing.enough or (launch.ended and timing.measured):
                return self._result(launch, job, ranks, timing)
            if launch.ended:
                return self._ended(launch, ranks)
            if (failed := self._late(launch, job, ranks, deadline)) is not None:
                return failed

    @staticmethod
    def _phase(launch: _Launch) -> Phase:
        if any(process.trains for process in launch.processes):
            return Phase.WARMUP
        return Phase.BUILD if launch.processes else Phase.IMPORT

    def _late(self, launch: _Launch, job: Job, ranks: Ranks, deadline: float) -> Result | None:
        """Why the launch cannot go on, though it has not ended.

        Raises:
            ModelError: nothing was ever measured, and never will be.
        """
        now = time.monotonic()
        if now > deadline:
            return Result(verdict=Verdict.SKIPPED, reason="the budget ended during this probe")
        stepping = ranks.made > 0
        limit_s = self._deadline_s[Phase.TIMED if stepping else Phase.ENGINE]
        if now - launch.lively > limit_s:
            doing = "between two steps" if stepping else f"before its first step; {_saw(launch)}"
            return Result(
                verdict=Verdict.HUNG,
                reason=f"gave no sign for {limit_s:.0f} s {doing}; see {launch.log.name}",
            )
        if said := launch.limit_log():
            self._note(said)
        endless = launch.backwards >= ENDLESS * job.grad_accum and not launch.stepped
        if not self._measured and (endless or launch.hidden()):
            raise ModelError(f"--script: {_saw(launch)}; see {launch.log}", "")
        if (size := launch.overflow()) is not None:
            return Result(
                verdict=Verdict.CRASHED,
                reason=f"wrote {gib(size)} to its scratch folder; have it save less often",
            )
        return None

    def _out_of_memory(self, launch: _Launch) -> Result | None:
        for process in launch.processes:
            seen, left = process.latest, process.left
            host = None if left is None or not left.error else _memory(left, self._device.kind)
            caught = seen is not None and seen.ooms > 0
            if host is None and not caught:
                continue
            where = "host memory" if host else "memory"
            again = ", and caught that itself" if host is None else ""
            return Result(
                verdict=Verdict.OOM,
                reason=f"process {process.pid} ran out of {where}{again}; see {launch.log.name}",
                peaks=None if seen is None else seen.peaks,
                of_host=bool(host),
            )
        return None

    def _ended(self, launch: _Launch, ranks: Ranks) -> Result:
        """The verdict on a launch that ended before it was measured.

        Raises:
            ModelError: nothing was ever measured, and it was not for memory.
        """
        code = launch.code or 0
        if code == 128 + signal.SIGKILL and launch.oom_kills():
            reason = "a process was killed by the host's OOM killer"
            of_host = self._device.kind == "cuda"
            return Result(verdict=Verdict.OOM, reason=reason, of_host=of_host)
        errors = [p.left for p in launch.processes if p.left is not None and p.left.error]
        by_rank = [left for p in ranks.all if (left := p.left) is not None and left.error]
        first = next(iter([*by_rank, *errors]), None)
        if first is not None:
            reason, trace = first.error, first.traceback
        else:
            trace = launch.last_lines() if code else ""
            said = [line for line in trace.splitlines() if re.search(r"\w", line)]
            reason = f"left with exit code {code}; {said[-1] if said else _saw(launch)}"
        if not self._measured:
            raise ModelError(f"--script: {reason}; see {launch.log}", trace)
        return Result(verdict=Verdict.CRASHED, reason=f"{reason}; see {launch.log.name}")

    def _refused(self, found: Mismatch, candidate: Candidate) -> Result:
        """What ran is not what was asked for: no measurement of `candidate`.

        Raises:
            ModelError: no candidate would be what was asked for.
        """
        if found.axis == "ranks":
            raise ModelError(
                f"--script: {found.says}; give --world-size {max(1, found.got)}, or have the"
                " command start as many",
                "",
            )
        if found.axis == "grad_accum":
            raise ModelError(f"--script: {found.says}; does it read {{grad_accum}}?", "")
        got = self._got.setdefault(found.axis, {})
        got[found.asked] = found.got
        if len(got) >= HEEDLESS and len(set(got.values())) == 1:
            return Result(
                verdict=Verdict.UNSUPPORTED,
                reason=f"{found.says} again: the script pays no heed to {{{found.axis}}}",
                only={found.axis: found.got},
            )
        return Result(verdict=Verdict.UNSUPPORTED, reason=found.says, unsupported=(found.axis,))

    def _result(self, launch: _Launch, job: Job, ranks: Ranks, timing: _Timing) -> Result:
        steps = timing.steps
        world_size = self._space.workload.world_size
        report = Report(
            number=self._launches,
            step_s=steps.step_s,
            warmup_step_s=steps.warmup.step_s,
            warmup_s=steps.warmup.wall_s,
            timed_s=steps.timed.wall_s,
            stopped_early=steps.stopped_early,
            loss=0.0,
            peaks=launch.peaks(ranks, timing.retries),
            state_bytes=0,
            conditions=timing.conditions(),
            energy=timing.energy(),
            ran=ranks.ran(len(steps.warmup.step_s), job.grad_accum, world_size),
        )
        return Result(
            verdict=Verdict.PRUNED if steps.stopped_early else Verdict.OK,
            report=report,
            parameters=report.ran.trainable if report.ran else None,
        )


class _Timing:
    """Feeds steps to the rule, and looks at the machine while they are timed."""

    def __init__(self, steps: Steps, launch: _Launch, counters: Sequence[Counters]) -> None:
        """`counters` are of the energy of each device in use, or of the host."""
        self.steps = steps
        self._counters = counters
        self._energy: list[Energy] = []
        self._began = 0.0
        self.retries = 0
        """Of the allocator, before the timing."""
        self._launch = launch
        self._fed = 0
        self._phase: Phase | None = None
        self._before: _Times | None = None

    @property
    def enough(self) -> bool:
        """Whether the rule wants no more steps."""
        return self._phase is Phase.TIMED and not self.steps.wanted(Phase.TIMED)

    @property
    def measured(self) -> bool:
        """Whether the script, which ended by itself, made the steps that a timing has at least."""
        return len(self.steps.timed.step_s) >= self.steps.least_timed

    def feed(self, ranks: Ranks) -> Phase | None:
        """Take over the steps that all ranks have made; the phase of the latest."""
        while self._fed < ranks.made and not self.enough:
            if not self.steps.wanted(Phase.WARMUP) and self._phase is not Phase.TIMED:
                self._phase = Phase.TIMED
                self._before = self._launch.times()
                self._energy = [Energy(of) for of in self._counters]
                self._began = time.monotonic()
                self.retries = _retries(ranks)
            phase = Phase.WARMUP if self.steps.wanted(Phase.WARMUP) else Phase.TIMED
            if self.steps.stopped_early:
                self._phase = Phase.TIMED
                break
            step_s = ranks.step_s(self._fed)
            self.steps.add(phase, step_s, step_s)
            self._phase = phase if self._phase is not Phase.TIMED else self._phase
            self._fed += 1
        if self.steps.stopped_early:
            self._phase = Phase.TIMED
        for each in self._energy:
            each.sample()
        return self._phase

    def energy(self) -> messages.Energy | None:
        """Of the timed steps, at the mean power since they began; None where that is not known."""
        known = [used for each in self._energy if (used := each.used()) is not None]
        took_s = time.monotonic() - self._began
        if not known or len(known) < len(self._energy):
            return None
        share = sum(self.steps.step_s) / took_s
        joules = sum(used.joules for used in known)
        return messages.Energy(share * joules, ",".join(used.covers for used in known))

    def conditions(self) -> Conditions:
        """What the machine did since the timing began."""
        now = self._launch.times()
        before = self._before or now
        return Conditions(
            interval_cpu_s=(now.wall_s - before.wall_s) * (psutil.cpu_count() or 1),
            busy_cpu_s=now.busy_s - before.busy_s,
            steal_cpu_s=now.steal_s - before.steal_s,
            own_cpu_s=max(0.0, now.own_s - before.own_s),
        )


@dataclass(frozen=True)
class _Times:
    """Processor time so far, in seconds."""

    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float


class _Launch:
    """The processes of one launch."""

    def __init__(
        self, channel: Channel, request: dict[str, Any], log: Path, in_use: tuple[int, ...]
    ) -> None:
        self.log = log
        self.processes: list[Process] = []
        self.lively = time.monotonic()
        """When it last gave a sign of life."""
        self.first_step: float | None = None
        self.code: int | None = None
        """The command's exit code, once it ended."""
        self._channel = channel
        self._in_use = in_use
        self._oom_kills = host_oom_kills()
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
        """Handle what comes within `timeout` seconds."""
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
        """Backward passes of the process that made the most."""
        return max((p.latest.backwards for p in self.processes if p.latest), default=0)

    @property
    def stepped(self) -> int:
        """Optimizer steps of the process that made the most."""
        return max((p.latest.ended for p in self.processes if p.latest), default=0)

    def hidden(self) -> bool:
        """Whether torch runs where nobody sees it, for a while already."""
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
        """Processes that the kernel has killed for memory since the launch."""
        return host_oom_kills() - self._oom_kills

    def overflow(self) -> int | None:
        """Bytes in the scratch folder, once they are too many."""
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

    def last_lines(self) -> str:
        """What it printed last."""
        with suppress(OSError):
            text = self.log.read_text(encoding="utf-8", errors="replace")
            return "\n".join(text.splitlines()[-LAST_LINES:])
        return ""

    def times(self) -> _Times:
        """Processor time so far, of the machine and of all that this launch runs."""
        cpu = psutil.cpu_times()
        own_s = 0.0
        for process in self._below():
            with suppress(psutil.Error):
                mine = process.cpu_times()
                own_s += mine.user + mine.system + mine.children_user + mine.children_system
        busy_s = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq
        return _Times(time.monotonic(), busy_s, cpu.steal, own_s)

    def peaks(self, ranks: Ranks, retries_before: int) -> Peaks:
        """The most that any rank held; the host's is of all processes of the launch, now."""
        each = []
        for process in ranks.all:
            seen = process.latest
            if seen is None or seen.peaks is None:
                continue
            outside = 0
            if seen.used_bytes:
                before = self._in_use[seen.rank % len(self._in_use)]
                outside = max(0, seen.used_bytes - before)
            peaks = replace(seen.peaks, device_bytes=seen.peaks.device_bytes + outside)
            each.append(replace(peaks, alloc_retries=max(0, peaks.alloc_retries - retries_before)))
        host = 0
        for below in self._below():
            with suppress(psutil.Error):
                host += below.memory_full_info().pss
        largest = Peaks.largest(each)
        return replace(largest, host_bytes=max(host, largest.host_bytes))

    def end(self) -> None:
        """No process of the launch is left when this returns, and nothing that it wrote."""
        if self._writer < 0:
            return
        writer, self._writer = self._writer, -1
        os.close(writer)  # which ends the supervisor, and all below it
        deadline = time.monotonic() + END_S
        while self._process.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process.signal(signal.SIGKILL)
        while self._kill_marked() and time.monotonic() < deadline + END_S:
            time.sleep(0.01)
        self._process.reap()
        _remove_locks(self._began)
        shutil.rmtree(self._temporary, ignore_errors=True)
        for process in self.processes:
            process.close()
        self._channel.close()

    def _below(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _kill_marked(self) -> bool:
        """What has this launch's address in its environment, should the supervisor have died;
        whether there was any."""
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
        try:
            hello = peer.receive()
        except (EOFError, WireError):
            peer.close()
            return
        if not isinstance(hello, Hello):
            peer.close()
            return
        self.lively = time.monotonic()
        self.processes.append(Process(pid=hello.pid, peer=peer))

    def _receive(self, process: Process) -> None:
        try:
            message = process.peer.receive()
        except (EOFError, WireError):
            process.close()
            return
        if isinstance(message, Left):
            process.left = message
        elif isinstance(message, Seen) and process.told(message):
            self.lively = time.monotonic()
            if message.step_s and self.first_step is None:
                self.first_step = time.monotonic() - sum(message.step_s)


def _maps_torch(pid: int) -> bool:
    with suppress(OSError):
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False


def _remove_locks(since: float) -> None:
    """Remove what a build of one of torch's extensions that was killed leaves behind: every later
    process that needs it would wait for that build, for ever (torch/utils/file_baton.py)."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    for lock in Path(os.environ.get("TORCH_EXTENSIONS_DIR") or usual).glob("**/lock"):
        with suppress(OSError):
            if lock.stat().st_mtime >= since:
                lock.unlink()


def _memory(left: Left, device_kind: str) -> bool | None:
    """Whether the error is of the host's memory, and not the device's; None where of neither."""
    names = {kind.rpartition(".")[2] for kind in left.kinds}
    text = left.error + left.traceback[-4000:]
    # The second has the text of a rank's error that torch.multiprocessing.spawn started.
    worded = bool(names & {"RuntimeError", "ProcessRaisedException"})
    if "OutOfMemoryError" in names or (worded and DEVICE_MEMORY.search(text)):
        return False
    if "MemoryError" in names or (worded and HOST_MEMORY.search(text)):
        return device_kind == "cuda"
    return None


def _saw(launch: _Launch) -> str:
    """What was seen of a script that made no step."""
    if not launch.processes:
        return (
            "no process of it imported torch where it could be seen: python -I, -E and -S, or a"
            " PYTHONPATH that is set anew, hide it"
        )
    if not launch.backwards:
        return "it imported torch, and made no backward pass"
    if not launch.stepped:
        return (
            f"it made {launch.backwards} backward passes, and no step of a torch optimizer; one"
            " with an optimizer of its own calls autotune.step()"
        )
    return f"it made {launch.stepped} optimizer steps, which are too few; let it train for longer"


def _retries(ranks: Ranks) -> int:
    return max(
        (r.latest.peaks.alloc_retries for r in ranks.all if r.latest and r.latest.peaks), default=0
    )


def _last_launch(logs: Path) -> int:
    """The largest number of a launch that left its log in `logs`; 0 if none did."""
    names = (re.fullmatch(r"launch(\d+)\.log", path.name) for path in logs.iterdir())
    return max((int(name[1]) for name in names if name), default=0)
