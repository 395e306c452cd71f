"""Probes of a user's script: each is a launch, watched from inside and outside."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.device.cuda import sensors_of
from autotune.device.device import Device
from autotune.errors import ModelError
from autotune.installed import CHECKOUT
from autotune.measure.runner import OUT_OF_BUDGET, Job, Result, StopRequestedError
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.extensions import Compiled
from autotune.measure.runner.group import POLL_S, phase_deadlines
from autotune.measure.runner.local import temporary_folder
from autotune.measure.runner.places import left_bytes
from autotune.measure.runner.process import ended
from autotune.measure.runner.wiring import Wiring
from autotune.measure.script.cause import cause_in, hint, is_launchers, is_peers, short
from autotune.measure.script.files import Files
from autotune.measure.script.launch import ALL_CORES, Launch
from autotune.measure.script.seen import Mismatch, Ranks
from autotune.measure.script.timing import ROUGH_STEPS, Timing
from autotune.space.axes import AXES, DEGREES
from autotune.space.candidate import Build, Candidate
from autotune.space.command import PREFIX, Command
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.units import gib
from autotune.wire.emulated import emulating, why
from autotune.wire.faults import DEVICE_MEMORY, HOST_MEMORY, PINNING
from autotune.wire.hook import Left
from autotune.wire.reports import DURING, EVALUATE, SAVE, Report
from autotune.wire.stopping import Phase, Steps

HOOK = CHECKOUT / "probes" / "hook"
LAST_LINES = 20
CHECKED_STEPS = 2
"""After so many steps, the run is compared with the request."""
ENDLESS = 64
"""So many backward passes per micro-step show that no optimizer steps."""
SETTLED_STEPS = 6
"""After so many steps, the hook can tell the parts of every step from phases."""
BUSY_LOAD = 2
"""So many runnable processes per core slow a script down."""
_QUOTE = "['\"]?"
COUNTS = "; to count otherwise, call autotune.step(tokens=..., samples=...) after each step"
HEEDLESS = 2
"""A script that runs the same for so many values of an axis ignores it."""


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
        wiring: Wiring,
    ) -> None:
        self._command = command
        self._device = device
        self._environment = dict(environment)
        self._space = space
        self._files = files
        self._wiring = wiring
        self._deadline_s = phase_deadlines(wiring.budget_s)
        self._compiled = Compiled(wiring.logs)
        self._launches = wiring.last_number(r"launch(\d+)\.log")
        self._launch: Launch | None = None
        self._measured: set[Candidate] = set()
        self._failed = False
        """Whether a launch failed before the first measurement."""
        self._dtype = ""
        """The script's dtype, once a note said that it differs from the request."""
        self._rows = wiring.rows
        self._cycle = 1
        """Steps from one rollout to the next, of the last launch."""
        self._got: dict[str, dict[int, int]] = {}
        """By axis: requested values, and what ran instead."""
        self._replicas: dict[tuple[object, ...], int] = {}
        """Replicas by `Candidate.sharing`, if they differ from the request."""
        self._said: set[tuple[object, ...]] = set()
        """`Candidate.sharing` of degrees that differ from the request, once a note said so."""
        self._alike = False  # whether a note said that replicas have the same data
        self._turns = False  # or that optimizers step in turns

    def run(self, job: Job, deadline: float) -> Result:
        before = dict(self._replicas)
        result = self._run(job, deadline)
        if self._replicas != before:  # the launch was asked for wrong micro-steps
            result = self._run(job, deadline)
        other = self._tells_rows(job.candidate)
        if other is None:
            return result
        accum = self._space.workload.micro_steps(other)
        few = replace(
            job.rule,
            warmup_limit_s=0.0,
            sustain_s=0.0,
            timed_limit_s=0.0,
            timed_least_s=0.0,
            energy_s=0.0,
        )
        asked = replace(job, candidate=other, grad_accum=accum, micro_steps=accum, rule=few)
        try:
            second = self._run(asked, deadline)
        except ModelError:  # a probe of that candidate will tell
            return result
        if self._rows is not None and self._rows > 1:
            return self._run(job, deadline)
        return second if second.only else result

    def _tells_rows(self, candidate: Candidate) -> Candidate | None:
        """Another candidate to launch, if the model got a multiple of this one's micro_batch.

        The same multiple there means several rows a sample; another one means that the script
        ignores the axis. None if there is nothing to find out.
        """
        got, asked = self._got.get("micro_batch", {}), candidate.micro_batch
        if self._rows is not None or list(got) != [asked] or got[asked] % asked:
            return None
        alike = (c for c in self._space.candidates if replace(c, micro_batch=asked) == candidate)
        others = (each for each in alike if each != candidate)
        return min(others, key=lambda each: abs(each.micro_batch - asked), default=None)

    def _run(self, job: Job, deadline: float) -> Result:
        self._launches += 1
        launch = self._launch = self._start(job)
        try:
            result = self._watch(launch, job, deadline)
        finally:
            self._launch = None
            launch.end()
        if result.report is not None:
            self._measured.add(job.candidate)
            self._rows = self._rows or 1
        start_s = (launch.first_step or time.monotonic()) - launch.began
        left_bytes(lambda: max(self._foreign_bytes(launch)), launch.lives)
        changes, report = self._foreign_bytes(launch), result.report
        if report is not None:
            conditions = replace(report.conditions, foreign_bytes=max(map(abs, changes)))
            report = replace(report, conditions=conditions)
        return replace(
            result, group_start_s=start_s, log=launch.log.name, report=report,
            foreign_bytes=max(0, *changes) if result.verdict.bounds_memory else 0,
        )  # fmt: skip

    def _foreign_bytes(self, launch: Launch) -> list[int]:
        """Growth of others' bytes on each device since `launch`, which has ended, began."""
        used = range(min(self._space.workload.world_size, len(launch.in_use)))
        now = self._device.in_use_bytes()
        return [now[i] - launch.in_use[i] for i in used]

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        return None  # the model is unknown before it runs

    def retire(self, until: float) -> None:
        pass

    def kill(self) -> None:
        if self._launch is not None:
            self._launch.end()

    def close(self) -> None:
        self.kill()
        self._compiled.remove()

    def _start(self, job: Job) -> Launch:
        log = self._wiring.logs / f"launch{self._launches:03d}.log"
        folder = temporary_folder(log)
        workload, limits = self._space.workload, self._space.limits
        replicas = self._replicas.get(job.candidate.sharing)
        self._files.write(job.candidate, folder, replicas)
        paths = self._files.paths(folder)
        Path(paths["out"]).mkdir(exist_ok=True)
        command = self._command.with_phases if job.phases else self._command
        variables, words = command.filled(
            job.candidate, workload, self._wiring.seed, paths, replicas
        )
        channel = Channel()
        dial = channel.dial(0, child=False)
        given = variables | self._environment
        paths_before = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        environment = (
            self._compiled.variables()
            | given
            | {
                f"{PREFIX}DIAL": f"{dial.host}:{dial.port}:{dial.key}",
                f"{PREFIX}CAPACITY_BYTES": ",".join(
                    map(str, limits.rank_capacities or [limits.capacity_bytes])
                ),
                f"{PREFIX}DEVICE_KIND": self._device.kind,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), paths_before])),
            }
        )
        environment |= job.candidate.alloc_variables
        # Short: a loader opens sockets there, and their paths have at most 107 characters.
        environment["TMPDIR"] = tempfile.mkdtemp(prefix="at-")
        request: dict[str, Any] = {
            "argv": words,
            "folder": str(self._command.folder),
            "environment": environment,
            "scratch": [str(folder), environment["TMPDIR"]],
        }
        return Launch(channel, request, log, self._device.in_use_bytes(), limits.rank_capacities)

    def _watch(self, launch: Launch, job: Job, deadline: float) -> Result:
        told = [name for name in ("micro_batch", "seq_len", "grad_accum", "tokens_per_batch")
                if self._command.says(name)]  # fmt: skip
        world_size = self._space.workload.world_size
        counters = self._device.energy().counters[:world_size]
        sensors = partial(sensors_of, self._device, world_size, launch.pids)
        timing = Timing(Steps(job.rule, job.needed_step_s), launch, counters, sensors)
        self._wiring.on_phase(Phase.IMPORT, 0)
        while True:
            if self._wiring.stop():
                raise StopRequestedError
            launch.pump(POLL_S)
            ranks = Ranks(launch.processes, job.candidate, told)
            if (failed := self._out_of_memory(launch)) is not None:
                return failed
            if ranks.made >= CHECKED_STEPS and (other := self._other(job, ranks)) is not None:
                return other
            phase = None if job.phases else timing.feed(ranks)
            self._wiring.on_phase(phase or self._phase(launch), ranks.made)
            if timing.enough or (launch.ended and timing.measured):
                return self._result(launch, job, ranks, timing)
            if job.phases and (lacks := self._lacks(launch, ranks, deadline)) is not None:
                return replace(self._result(launch, job, ranks, timing), reason=lacks)
            if launch.ended:
                return self._ended(launch, job, ranks)
            if time.monotonic() > deadline and timing.rough and _may_be_rough(job):
                saw = f"{OUT_OF_BUDGET}; it made {ranks.made} optimizer steps"
                return replace(self._result(launch, job, ranks, timing), reason=saw)
            if (failed := self._late(launch, job, ranks, deadline)) is not None:
                return failed

    def _other(self, job: Job, ranks: Ranks) -> Result | None:
        """A refusal if the run differs from the request; None if it does not. Raises ModelError if
        the script could run no candidate as requested."""
        candidate, world_size = job.candidate, self._space.workload.world_size
        accum = self._accum(job, ranks)
        if accum is None:
            return self._undivided(candidate, ranks)
        found = ranks.mismatch(accum, world_size, self._rows or 1)
        if found is not None and self._learns_replicas(found, ranks, candidate):
            return Result(verdict=Verdict.UNSUPPORTED, reason=found.says)
        if found is not None and not self._learns_rows(found):
            return self._refused(found, candidate)
        self._say_dtype(ranks)
        self._say_cycle(ranks)
        self._say_degrees(ranks, candidate)
        self._say_alike(ranks)
        self._say_turns(ranks)
        return None

    def _lacks(self, launch: Launch, ranks: Ranks, deadline: float) -> str | None:
        """The phases that the launch lacked; None to wait for them, never over the ceiling."""
        found = launch.phases(ranks)
        missing = [name for name in (EVALUATE, SAVE) if name not in found or not found[name].count]
        ends = time.monotonic() > deadline or (launch.ended and not launch.code)
        limit = self._space.limits.limit_bytes
        over = any(peaks.device_bytes > limit for peaks in launch.rank_peaks(ranks))
        told = not missing or (over and not launch.in_phase)
        if not (ranks.made if ends else ranks.made >= SETTLED_STEPS and told):
            return None
        names = " and ".join(DURING[name] for name in missing)
        return f"nothing was seen {names} in {ranks.made} steps" if names else ""

    def _accum(self, job: Job, ranks: Ranks) -> int | None:
        """Micro-steps that reach the global batch with the replicas seen; None if none do."""
        workload, asked = self._space.workload, job.candidate
        if workload.global_batch is None or len(ranks.all) != workload.world_size:
            return job.grad_accum
        return workload.over(len(ranks.sharing.replicas), asked).grad_accum(asked)

    def _undivided(self, candidate: Candidate, ranks: Ranks) -> Result:
        """The result if the replicas differ from the request, and miss the global batch."""
        replicas, batch = len(ranks.sharing.replicas), self._space.workload.global_batch
        asked = self._space.workload.replicas(candidate)
        reason = f"asked for dp {asked}, the ranks are {replicas} replicas, which miss {batch}"
        return Result(
            verdict=Verdict.UNSUPPORTED, reason=reason,
            unsupported=("micro_batch", *DEGREES, "own"),
        )  # fmt: skip

    def _learns_replicas(self, found: Mismatch, ranks: Ranks, candidate: Candidate) -> bool:
        """Whether `found` shows another number of replicas, which needs other micro-steps."""
        replicas = len(ranks.sharing.replicas)
        known = self._replicas.get(candidate.sharing, self._space.workload.replicas(candidate))
        if found.axis != "grad_accum" or replicas == known:
            return False
        self._replicas[candidate.sharing] = replicas
        return True

    def _learns_rows(self, found: Mismatch) -> bool:
        """Whether `found` shows several rows a sample: chosen and rejected, or two views."""
        rows = found.got // found.asked
        known = self._got.get("micro_batch", {})
        if found.axis != "micro_batch" or rows * found.asked != found.got:
            return False
        if self._rows is not None:
            return False
        if not any(asked != found.asked and got == rows * asked for asked, got in known.items()):
            return False
        self._rows = rows
        self._wiring.note(f"the model gets {rows} rows a sample")
        return True

    def _say_dtype(self, ranks: Ranks) -> None:
        """Note a dtype that differs from the request. The result has the one that ran."""
        asked = self._space.workload.dtype
        if self._command.says("dtype") and ranks.dtype not in ("", asked, self._dtype):
            self._dtype = ranks.dtype
            self._wiring.note(
                f"--dtype {asked} was requested, but the model computes in {ranks.dtype}"
            )

    def _say_cycle(self, ranks: Ranks) -> None:
        """That the script generates what several steps learn from."""
        if ranks.cycle > 1 and ranks.cycle != self._cycle:
            self._wiring.note(
                f"a rollout every {ranks.cycle} steps: a step's time has its part of it"
            )
        self._cycle = ranks.cycle or self._cycle

    def _say_degrees(self, ranks: Ranks, candidate: Candidate) -> None:
        """Note degrees that differ from the request."""
        asked = {name: getattr(candidate, name) for name in ("tp", "pp", "cp")
                 if self._command.says(name)}  # fmt: skip
        seen = {name: ranks.sharing.degrees.get(name, 1) for name in asked}
        if not ranks.sharing.known or asked == seen or candidate.sharing in self._said:
            return
        self._said.add(candidate.sharing)
        both = (" ".join(f"{n} {size}" for n, size in each.items()) for each in (asked, seen))
        self._wiring.note("{} was requested, but the ranks have {}".format(*both))

    def _say_alike(self, ranks: Ranks) -> None:
        """Note replicas that learn from the same data. Each counts nevertheless."""
        if ranks.alike and not self._alike:
            self._alike = True
            self._wiring.note(
                "all replicas train on the same batches: DistributedSampler gives each its own"
            )

    def _say_turns(self, ranks: Ranks) -> None:
        """Note optimizers of which none is in each step."""
        if ranks.alternating and not self._turns:
            self._turns = True
            self._wiring.note(
                "optimizers step in turns: call autotune.step(tokens=..., samples=...) where one"
                " of the script's steps ends"
            )

    @staticmethod
    def _phase(launch: Launch) -> Phase:
        if any(process.trains for process in launch.processes):
            return Phase.WARMUP
        return Phase.BUILD if launch.processes else Phase.IMPORT

    def _late(self, launch: Launch, job: Job, ranks: Ranks, deadline: float) -> Result | None:
        """Why the launch cannot go on, though it has not ended. Raises ModelError if no probe was
        measured, and none will be."""
        now = time.monotonic()
        if now > deadline:
            slow, needs_s = _too_slow(launch, ranks, job)
            return Result(
                verdict=Verdict.SKIPPED, reason=f"{OUT_OF_BUDGET}; {slow}{self._busy()}",
                needs_s=needs_s, log=launch.log.name,
            )  # fmt: skip
        stepping = ranks.made > 0
        # Before the first step, a script may load data, evaluate, or compile.
        busy = launch.in_phase or not stepping
        limit_s = self._deadline_s[Phase.COMPILE if busy else Phase.TIMED]
        if now - launch.lively > limit_s:
            doing = "between two steps" if stepping else f"before its first step; {_saw(launch)}"
            return Result(
                verdict=Verdict.HUNG,
                reason=f"gave no sign for {limit_s:.0f} s {doing}; see {launch.log.name}",
            )
        if said := launch.limit_log():
            self._wiring.note(said)
        # A pipeline may cut a batch into single samples.
        cut = job.candidate.micro_batch if self._space.workload.world_size > 1 else 1
        endless = launch.backwards >= ENDLESS * job.grad_accum * cut and not launch.stepped
        if not self._measured and (endless or launch.hidden()):
            raise ModelError(f"--script: {_saw(launch)}; see {launch.log}", "")
        if (size := launch.overflow()) is not None:
            return Result(
                verdict=Verdict.CRASHED,
                reason=f"wrote {gib(size)} to its scratch folder; have it save less often",
            )
        return None

    def _busy(self) -> str:
        """A note and remedy if others use the machine; else empty."""
        load, cores = os.getloadavg()[0], len(ALL_CORES)
        if load < BUSY_LOAD * cores:
            return ""
        known = os.environ.keys() | self._environment.keys() | self._command.assigned.keys()
        helps = self._device.kind == "cpu" and "OMP_NUM_THREADS" not in known
        return (
            f"; the machine is busy: load {load:.0f} on {cores} cores"
            + "; try OMP_NUM_THREADS=1 before the script's command" * helps
        )

    def _out_of_memory(self, launch: Launch) -> Result | None:
        for process in launch.processes:
            seen, left = process.latest, process.left
            host = None if left is None or not left.error else _memory(left, self._device.kind)
            caught = seen is not None and seen.ooms > 0
            if host is None and not caught:
                continue
            where = "host memory" if host else "memory"
            phase = left.phase if left is not None and host is not None else ""
            if caught and seen is not None:
                phase = phase or seen.oom_in
            if phase:
                where += f" {DURING[phase]}"
            after = f" after {seen.ended} steps" if seen is not None and seen.ended else ""
            return Result(
                verdict=Verdict.OOM,
                reason=f"process {process.pid} ran out of {where}{after}; see {launch.log.name}",
                peaks=None if seen is None else seen.peaks,
                of_host=bool(host),
            )
        return None

    def _ended(self, launch: Launch, job: Job, ranks: Ranks) -> Result:
        """The verdict on a launch that ended before it was measured.

        Raises:
            ModelError: nothing was measured before, and memory is not the cause. It is the second
                such failure, or no candidate is smaller.
        """
        code = launch.code or 0
        errors = [p.left for p in launch.processes if p.left is not None and p.left.error]
        by_rank = [left for p in ranks.all if (left := p.left) is not None and left.error]
        if code and not by_rank and launch.oom_kills():  # a launcher then raises its own error
            reason = "a process was killed by the host's OOM killer"
            of_host = self._device.kind == "cuda"
            return Result(verdict=Verdict.OOM, reason=reason, of_host=of_host)
        # A launcher only knows that one of its processes failed.
        first = min(
            [*by_rank, *errors],
            key=lambda left: (is_launchers(left.kinds), is_peers(left.error)),
            default=None,
        )
        if first is not None:
            reason, trace = first.error, first.traceback
            if is_launchers(first.kinds) and (cause := cause_in(launch.said())) is not None:
                reason, trace = cause, ""
        else:
            trace = "\n".join(launch.said().splitlines()[-LAST_LINES:]) if code else ""
            said = [line for line in trace.splitlines() if re.search(r"\w", line)]
            reason = f"{ended(_as_signal(code))}; {said[-1] if said else _saw(launch)}"
        if missing := why(reason, trace, launch.said()):
            trace = ""  # nothing is wrong there
        reason = short(reason) + missing + hint(reason) + self._refuses_word(reason, job.candidate)
        if not self._measured and not job.phases:
            least = min(each.tokens for each in self._space.candidates)
            if self._failed or job.candidate.tokens == least:
                raise ModelError(f"--script: {reason}; see {launch.log}", trace)
            self._failed = True
        return Result(verdict=Verdict.CRASHED, reason=f"{reason}; see {launch.log.name}")

    def _refuses_word(self, error: str, candidate: Candidate) -> str:
        """The remedy if the script takes True or False for an axis of words; else empty."""
        words = [name for name in self._command.placeholders if name in AXES and AXES[name].words]
        for name in words:
            value = re.escape(str(getattr(candidate, name)))
            if re.search(
                rf"(?:invalid choice: |invalid \w+ value: |\bgot ){_QUOTE}{value}\b", error
            ):
                return (
                    f'; for True and False write --axis "{name[:2]}=True,False", and'
                    f" {{{name[:2]}}} for {{{name}}}"
                )
        return ""

    def _refused(self, found: Mismatch, candidate: Candidate) -> Result:
        """The result if the run differs from the request: no measurement of `candidate`. Raises
        ModelError if the script could run no candidate as requested."""
        if found.axis == "ranks":
            raise ModelError(f"--script: {found.says}", "")
        if found.axis == "grad_accum":
            raise ModelError(
                f"--script: {found.says}; check that the script uses {{grad_accum}}{COUNTS}", ""
            )
        if found.axis == "cut":
            if not self._measured:
                raise ModelError(f"--script: {found.says}", "")
            return Result(
                verdict=Verdict.UNSUPPORTED, reason=found.says, unsupported=("micro_batch",)
            )
        got = self._got.setdefault(found.axis, {})
        got[found.asked] = found.got
        says = found.says
        ran = {getattr(c, found.axis) for c in self._measured} | set(got.values())
        if len(got) >= HEEDLESS and len(ran) == 1:
            if self._is_all(found, got):
                raise ModelError(
                    f"--script: {says}, again: it ignores {{{found.axis}}}; leave that out, or use"
                    f" it in the script{COUNTS}",
                    "",
                )
            return Result(
                verdict=Verdict.UNSUPPORTED,
                reason=f"{says}, again: the script ignores {{{found.axis}}}{COUNTS}",
                only={found.axis: found.got},
            )
        return Result(verdict=Verdict.UNSUPPORTED, reason=says + COUNTS, unsupported=(found.axis,))

    def _is_all(self, found: Mismatch, got: Mapping[int, int]) -> bool:
        """Whether the script ignores the request, or has an upper limit below all values."""
        searched = [name for name, values in self._space.axes.items() if len(values) > 1]
        heedless = min(got) < found.got and searched == [found.axis] and not self._measured
        return heedless or all(getattr(c, found.axis) != found.got for c in self._space.candidates)

    def _result(self, launch: Launch, job: Job, ranks: Ranks, timing: Timing) -> Result:
        steps = timing.steps
        step_s = steps.step_s
        if step_s is steps.timed.step_s and step_s:
            step_s = ranks.evened(timing.began_at, step_s)
        report = Report(
            number=self._launches,
            step_s=step_s,
            warmup_step_s=steps.warmup.step_s,
            warmup_s=steps.warmup.wall_s,
            timed_s=steps.timed.wall_s,
            stopped_early=steps.stopped_early,
            loss=0.0,
            peaks=launch.peaks(ranks, timing.retries),
            state_bytes=0,
            conditions=timing.conditions(),
            energy=timing.energy(),
            phases=launch.phases(ranks),
            rank_bytes=launch.rank_bytes(ranks),
            ran=ranks.ran(
                timing.began_at,
                self._accum(job, ranks) or job.grad_accum,
                self._rows or 1,
            ),
        )
        return Result(
            verdict=Verdict.PRUNED if steps.stopped_early else Verdict.OK,
            report=report,
            parameters=report.ran.trainable if report.ran else None,
        )


def _memory(left: Left, device_kind: str) -> bool | None:
    """Whether the error is of the host's memory (else of the device's); None for other errors."""
    names = {kind.rpartition(".")[2] for kind in left.kinds}
    text = left.error + left.traceback[-4000:]
    # ProcessRaisedException has the text of an error in a rank of torch.multiprocessing.spawn.
    worded = bool(names & {"RuntimeError", "ProcessRaisedException"})
    if "OutOfMemoryError" in names:  # raised by the device's allocator
        return False
    if worded and DEVICE_MEMORY.search(text):
        last_frame = left.traceback.rpartition("\n  File ")[2]
        return device_kind == "cuda" and PINNING.search(last_frame) is not None
    if "MemoryError" in names or (worded and HOST_MEMORY.search(text)):
        return device_kind == "cuda"
    return None


def _as_signal(code: int) -> int:
    """The process's own code, if a shell or the supervisor encoded its signal."""
    return 128 - code if code - 128 in set(signal.Signals) else code


def _saw(launch: Launch, *, in_time: bool = True) -> str:
    """The steps that were seen of a script with too few; without advice if time ran out."""
    if not launch.processes:
        return (
            "no process of it imported torch where it could be seen: python -I, -E and -S, or a"
            " PYTHONPATH that is set anew, hide it"
        )
    if not launch.backwards:
        return "it imported torch, and made no backward pass"
    passes = f"{launch.backwards} backward pass{'es' * (launch.backwards != 1)}"
    steps = f"{launch.stepped or 'no'} optimizer step{'s' * (launch.stepped != 1)}"
    if not in_time:
        return f"it had made {passes} and {steps}"
    if not launch.stepped:
        return (
            f"it made {passes}, and no step of a torch optimizer; one"
            " with an optimizer of its own calls autotune.step()"
        )
    stopped = "; losses are 0 on emulated GPUs: it may have stopped for that" * emulating()
    return f"it made {steps}, too few to measure; let it train for longer{stopped}"


def _too_slow(launch: Launch, ranks: Ranks, job: Job) -> tuple[str, float | None]:
    """What took the time of a launch with too few steps, and the seconds that it needs."""
    if not ranks.made or launch.first_step is None:
        return _saw(launch, in_time=False), None
    step_s = max(ranks.step_s(number, 1) for number in range(ranks.made))
    rule = job.rule
    needed = 1 + ROUGH_STEPS if _may_be_rough(job) else rule.warmup_steps + rule.timed_steps
    needed *= ranks.cycle or 1
    start_s = launch.first_step - launch.began
    said = (
        f"its first step began after {start_s:.0f} s, a step took {step_s:.2g} s, and a probe"
        f" needs {needed} steps"
    )
    return said, start_s + needed * step_s


def _may_be_rough(job: Job) -> bool:
    """Whether few steps are better than none: not for finals, phases or energy."""
    return not (job.mixed or job.phases or job.rule.energy_s)
