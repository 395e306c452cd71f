"""Live worker groups: at most one at a time, kept while its build is asked for."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune.device.device import Device
from autotune.engines import engine_of
from autotune.outcome import Verdict
from autotune.predict.trace import Trace, request
from autotune.runner import Job, Result, StopRequestedError
from autotune.runner.channel import Channel
from autotune.runner.forks import Spawned, Starter
from autotune.runner.group import POLL_S, Group, Rank, phase_deadlines
from autotune.runner.helper import Helper
from autotune.runner.ops import Ops
from autotune.space.axes import alloc_conf
from autotune.space.candidate import Build, Candidate
from autotune.space.space import Limits, Space
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.messages import Described, Probe, Start
from autotune.wire.stopping import Phase

BASELINE_SLACK_BYTES = 64 * 2**20
BASELINE_WAIT_S = 20.0
FLAT_S = 0.5
"""Device memory that does not change for so long is not on its way back any more."""


class Pool:
    """The `Runner` of real devices: at most one live group, reused while the build is the same."""

    def __init__(
        self,
        *,
        device: Device,
        workload: Workload,
        limits: Limits,
        logs: Path,
        seed: int,
        stop: Callable[[], bool],
        on_phase: Callable[[Phase, int], None],
        note: Callable[[str], None],
        budget_s: float = math.inf,
        starter: Starter | None = None,
    ) -> None:
        """`starter` starts the ranks, and is closed with the pool; without it they are spawned."""
        self._device = device
        self._workload = workload
        self._limits = limits
        self._logs = logs
        self._seed = seed
        self._stop = stop
        self._on_phase = on_phase
        self._note = note
        self._deadline_s = phase_deadlines(budget_s)
        self._channel = Channel()
        self._baseline_bytes = device.in_use_bytes()
        self._group: Group | None = None
        self._build: Build | None = None
        self._groups = _last_group(logs)
        self._ops = Ops(device, workload, logs, stop, note)
        self._starter: Starter = starter or Spawned()
        self._probes = 0

    @property
    def live_build(self) -> Build | None:
        return self._build if self._group is not None else None

    def run(self, job: Job, deadline: float) -> Result:
        if new_ops := self._ops.missing(job.candidate):
            self.retire(deadline)
            self._ops.load(new_ops, deadline)
        if (refusal := self._ops.refusal(job.candidate)) is not None:
            return refusal
        group = self._group
        began = time.monotonic()
        if group is None or job.fresh or self._build != job.candidate.build or not group.alive():
            self.retire(deadline)
            launched = self._launch(job.candidate, deadline)
            if isinstance(launched, Result):
                log = self._log(0).name
                return replace(launched, group_start_s=time.monotonic() - began, log=log)
            group = launched
        start_s = time.monotonic() - began if not group.probes else 0.0
        ready = group.ranks[0].ready
        self._probes += 1
        result = replace(
            group.probe(self._request(job), deadline),
            group_start_s=start_s,
            warm=group.probes > 1,
            parameters=ready.parameters if ready else None,
            versions=ready.versions if ready else None,
            log=group.ranks[0].log.name,
        )
        if result.report is None:
            self._end(politely=False, until=deadline)
        return result

    def trace(self, space: Space, limit_s: float) -> Trace | None:
        engine = engine_of(self._workload, space.opening[0]).name
        began = time.monotonic()
        self._get_ready(engine, began + limit_s)
        if not self._starter.ready(engine):
            self._note(f"memory is predicted without a trace: imports took over {limit_s:.0f} s")
            return None
        # A trace has no use for a GPU, and must not leave a context on one.
        environment = self._device.rank_environment(self._workload.world_size)
        asked = request(space, self._device.kind)
        helper = Helper(
            asked,
            partial(self._starter.start_rank, engine),
            logs=self._logs,
            environment=environment | {"CUDA_VISIBLE_DEVICES": ""},
            note=lambda why: self._note(f"memory is predicted without a trace: {why}"),
            limit_s=limit_s,
        )
        try:
            while (found := helper.poll()) is None and helper.works:
                if self._stop():
                    raise StopRequestedError
                time.sleep(POLL_S / 10)
            return Trace(asked, found) if isinstance(found, Described) else None
        finally:
            helper.close()

    def retire(self, until: float) -> None:
        if self._group is not None:
            self._end(politely=True, until=until)

    def kill(self) -> None:
        """Every rank, now; for a second Ctrl-C."""
        if self._group is not None:
            self._group.kill()
        self._ops.kill()
        self._starter.kill()

    def close(self) -> None:
        """End the live group and the channel; nothing is probed after this."""
        if self._group is not None:
            self._group.end(politely=False)
            self._group = None
        self._starter.close()
        self._channel.close()

    def _launch(self, candidate: Candidate, deadline: float) -> Group | Result:
        """A group that stands, or why there is none."""
        engine = engine_of(self._workload, candidate).name
        self._get_ready(engine, deadline)
        self._build = candidate.build
        group = self._new_group(engine, self._build)
        failure = group.start(self._start_message(candidate), deadline)
        if failure is None:
            self._starter.succeeded()
            return group
        self._end(politely=False, until=deadline)
        spoke = failure.verdict.bounds_memory or failure.verdict is Verdict.SKIPPED
        if not spoke and self._starter.give_up(failure.reason):
            return self._launch(candidate, deadline)
        return failure

    def _get_ready(self, engine: str, deadline: float) -> None:
        """Make that ranks of `engine` can be started at once."""
        if not self._starter.ready(engine):
            self._on_phase(Phase.IMPORT, 0)
            self._starter.prepare(engine, self._stop, deadline)

    def _new_group(self, engine: str, build: Build) -> Group:
        self._groups += 1
        world_size = self._workload.world_size
        environment = self._device.rank_environment(world_size) | self._ops.environment
        if conf := alloc_conf(build.allocator):
            environment |= {"PYTORCH_ALLOC_CONF": conf}
        if build.compiles:  # compilers beside the ranks would be more than their capacity
            environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        ranks: list[Rank] = []
        # Known to `kill` before it has a rank.
        self._group = Group(
            self._channel,
            ranks,
            stop=self._stop,
            on_phase=self._on_phase,
            note=self._note,
            deadline_s=self._deadline_s,
        )
        for number in range(world_size):
            dial = self._channel.dial(number, child=True)
            log = self._log(number)
            # On the CPU all ranks share the one device.
            info = self._device.infos[number % len(self._device.infos)]
            process = self._starter.start_rank(engine, dial, log, environment)
            ranks.append(Rank(number=number, process=process, log=log, device_uuid=info.uuid))
        return self._group

    def _log(self, rank: int) -> Path:
        return self._logs / f"group{self._groups:03d}-rank{rank}.log"

    def _end(self, *, politely: bool, until: float) -> None:
        """End the live group; return when its device memory is back, or at `until`."""
        assert self._group is not None
        group, self._group = self._group, None
        group.end(politely=politely)
        began = time.monotonic()
        deadline = min(until, began + BASELINE_WAIT_S)
        last, changed = self._over_baseline_bytes(), began
        while last > BASELINE_SLACK_BYTES:
            now = time.monotonic()
            if now > deadline or now - changed > FLAT_S:
                self._note(f"device memory is {gib(last)} over its baseline after a group's end")
                return
            time.sleep(POLL_S)
            over = self._over_baseline_bytes()
            if over != last:
                last, changed = over, time.monotonic()

    def _over_baseline_bytes(self) -> int:
        now = self._device.in_use_bytes()
        return max(a - b for a, b in zip(now, self._baseline_bytes, strict=True))

    def _start_message(self, candidate: Candidate) -> Start:
        engine = engine_of(self._workload, candidate)
        return Start(
            world_size=self._workload.world_size,
            device_kind=self._device.kind,
            device_uuid="",
            capacity_bytes=self._limits.capacity_bytes,
            store_host="",
            store_port=0,
            model=self._workload.spec(candidate.depth, candidate.build),
            engine=engine.name,
            zero_stage=candidate.zero_stage,
            offload=candidate.offload,
            dtype=self._workload.dtype,
            param_dtype=candidate.param_dtype,
            optimizer=candidate.optimizer,
            allocator=alloc_conf(candidate.allocator),
            engine_config=engine.config(candidate, self._workload, self._device.kind),
            seed=self._seed,
            energy=self._device.energy().at,
        )  # fmt: skip

    def _request(self, job: Job) -> Probe:
        shape = (job.candidate.micro_batch, job.candidate.seq_len)
        plain = Probe(
            number=self._probes,
            micro_batch=job.candidate.micro_batch,
            seq_len=job.candidate.seq_len,
            grad_accum=job.grad_accum,
            micro_steps=job.micro_steps,
            rule=job.rule,
            needed_step_s=job.needed_step_s,
        )
        if (mix := self._workload.length_mix) is None:
            return plain
        ranks, longest = self._workload.world_size, mix.worst(*shape)
        request = replace(plain, lengths=[[longest] * ranks], pad_to_multiple=mix.pad_to_multiple)
        if not job.mixed:
            return request
        drawn = mix.draw(*shape, ranks=ranks, micro_steps=job.micro_steps, seed=self._seed)
        return replace(request, lengths=drawn, longest=longest)


def _last_group(logs: Path) -> int:
    """The largest number of a group that left its log in `logs`; 0 if none did."""
    names = (re.fullmatch(r"group(\d+)-rank\d+\.log", path.name) for path in logs.iterdir())
    return max((int(name[1]) for name in names if name), default=0)
