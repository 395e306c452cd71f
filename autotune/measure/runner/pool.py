"""Live worker groups: at most one at a time, kept while its build is asked for."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from autotune.device.device import Device
from autotune.errors import NoNodesError
from autotune.measure.runner import Job, NodeLostError, Result, StopRequestedError
from autotune.measure.runner.baseline import FLAT_S, SLACK_BYTES, left_bytes
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.group import POLL_S, RECENT_S, Group, Rank, phase_deadlines
from autotune.measure.runner.helper import Helper
from autotune.measure.runner.node import LOOPBACK, LocalNode, Node, Seat
from autotune.measure.runner.ops import Ops
from autotune.measure.runner.process import RankProcess
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_of
from autotune.space.outcome import Verdict
from autotune.space.space import Limits, Space
from autotune.space.trace import Trace, request, why_untraced
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.agents import Task
from autotune.wire.dial import Dial
from autotune.wire.messages import Described, Probe, Start
from autotune.wire.stopping import Phase

UNTRACED = "memory is predicted by formulas alone, since the models were not traced"


class Pool:
    """The `Runner` of real devices: at most one live group, reused while the build is the same."""

    def __init__(
        self,
        *,
        device_kind: Literal["cpu", "cuda"],
        seats: Callable[[], Sequence[Seat]],
        workload: Workload,
        limits: Limits,
        logs: Path,
        seed: int,
        stop: Callable[[], bool],
        on_phase: Callable[[Phase, int], None],
        note: Callable[[str], None],
        budget_s: float = math.inf,
        channel: Channel | None = None,
        beside: int = 1,
        close: Callable[[], None] = lambda: None,
        turn: Callable[[str], AbstractContextManager[object]] = nullcontext,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`seats` says where the ranks of the next group run, or raises `NoNodesError`; it raises
        the same, or gives others, once a node of these is lost. `channel` is what ranks dial, and
        closed with the pool; `beside` is how many groups share a node. `close` ends the nodes.
        Pools make steps in the `turn` of the machine that they share, and have the `numbers` of
        their groups from one source: logs are named by them."""
        self._device_kind = device_kind
        self._seats_now = seats
        self._beside = beside
        self._close_nodes = close
        self._workload = workload
        self._limits = limits
        self._logs = logs
        self._seed = seed
        self._stop = stop
        self._on_phase = on_phase
        self._note = note
        self._deadline_s = phase_deadlines(budget_s)
        self._channel = channel or Channel()
        self._seats: Sequence[Seat] = ()
        self._baseline_bytes: dict[Node, tuple[int, ...]] = {}
        """Of all devices of a node; of these the group's own are looked at."""
        self._group: Group | None = None
        self._build: Build | None = None
        self._turn = turn
        self._numbers = numbers or group_numbers(logs)
        self._number = 0
        """Of the live group, or the last one."""
        self._ops = Ops(device_kind, workload, logs, stop, note)
        self._probes = 0
        self._start_s = 0.0
        """What starting the live group took, until a result says so."""

    @property
    def live_build(self) -> Build | None:
        return self._build if self._group is not None else None

    def run(self, job: Job, deadline: float) -> Result:
        try:
            group = self._group_for(job, deadline)
            if isinstance(group, Result):
                return group
            start_s, self._start_s = self._start_s, 0.0
            self._probes += 1
            began = time.monotonic()
            with self._turn(self._nodes[0].name):  # a group on several shares none
                waited_s = time.monotonic() - began
                probed = group.probe(self._request(job), deadline)
            ready = group.ranks[0].ready
            if probed.report is None:
                self._end(politely=False, until=deadline)
            return replace(
                probed,
                waited_s=waited_s,
                group_start_s=start_s,
                warm=group.probes > 1,
                parameters=ready.parameters if ready else None,
                versions=ready.versions if ready else None,
                log=group.ranks[0].log.name,
            )
        except NodeLostError as lost:
            if self._group is not None:
                self._end(politely=False, until=deadline)
            gone = self._why_gone(deadline)
            why = gone or str(lost)
            return Result(verdict=Verdict.SKIPPED, reason=why, put_off=True, gone=gone)

    def _group_for(self, job: Job, deadline: float) -> Group | Result:
        """The live group, or a new one, or why there is none."""
        self._take_seats(deadline)
        if new_ops := self._ops.missing(job.candidate, self._nodes):
            self.retire(deadline)
            self._ops.load(new_ops, self._nodes, deadline)
        if (refusal := self._ops.refusal(job.candidate)) is not None:
            return refusal
        group = self._group
        if group and not job.fresh and self._build == job.candidate.build and group.alive():
            return group
        began = time.monotonic()
        self.retire(deadline)
        launched = self._launch(job.candidate, deadline)
        self._start_s = time.monotonic() - began
        if isinstance(launched, Group):
            return launched
        return replace(launched, group_start_s=self._start_s, log=self._log(0).name)

    def trace(self, space: Space, limit_s: float) -> Trace | None:
        engine = engine_of(self._workload, space.opening[0]).name
        began = time.monotonic()
        self._take_seats(began + limit_s)
        node = self._nodes[0]
        self._get_ready(engine, began + limit_s)
        if not node.ready(engine):
            self._note(f"{UNTRACED}: imports took over {limit_s:.0f} s")
            return None

        def start(dial: Dial, log: Path, environment: dict[str, str]) -> RankProcess:
            task = self._task(engine, self._seats[0], environment)
            return node.start(task, dial, log)

        asked = request(space, self._device_kind)
        if not asked.models:
            why = why_untraced(space, self._device_kind)
            self._note(f"{UNTRACED}: {why}")
            return None
        helper = Helper(
            asked,
            start,
            logs=self._logs,
            # A trace has no use for a GPU, and must not leave a context on one.
            environment={"CUDA_VISIBLE_DEVICES": ""},
            channel=self._channel,
            note=lambda why: self._note(f"{UNTRACED}: {why}"),
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
        for node in self._nodes:
            node.kill()

    def close(self) -> None:
        """End the live group and the channel; nothing is probed after this."""
        if self._group is not None:
            self._group.end(politely=False)
            self._group = None
        self._close_nodes()
        self._channel.close()

    def _launch(self, candidate: Candidate, deadline: float) -> Group | Result:
        """A group that stands, or why there is none."""
        engine = engine_of(self._workload, candidate).name
        self._get_ready(engine, deadline)
        self._build = candidate.build
        group = self._new_group(engine, self._build)
        failure = group.start(self._start_message(candidate), deadline)
        if failure is None:
            for node in self._nodes:
                node.succeeded()
            return group
        self._end(politely=False, until=deadline)
        told = failure.verdict in (Verdict.SKIPPED, Verdict.UNSUPPORTED)
        if failure.verdict.bounds_memory or told:
            return failure
        others = [node.give_up(failure.reason) for node in self._nodes]
        return self._launch(candidate, deadline) if any(others) else failure

    def _take_seats(self, until: float) -> None:
        """Where the next group would run. A node that is silent is waited for until it speaks or
        is lost. Raises NoNodesError."""
        while True:
            if any(node.lost for node in self._nodes) and self._group is not None:
                self._end(politely=False, until=until)
            self._seats = self._seats_now()
            for node in self._nodes:
                self._baseline_bytes.setdefault(node, node.in_use_bytes())
            now = time.monotonic()
            if now > until or all(node.heard_since(now - RECENT_S) for node in self._nodes):
                return
            if self._stop():
                raise StopRequestedError
            time.sleep(POLL_S)

    def _why_gone(self, until: float) -> str:
        """Why no other group can be started; empty where one can."""
        try:
            self._take_seats(until)
        except NoNodesError as error:
            return str(error)
        return ""

    @property
    def _nodes(self) -> list[Node]:
        return list(dict.fromkeys(seat.node for seat in self._seats))

    def _get_ready(self, engine: str, deadline: float) -> None:
        """Make that ranks of `engine` can be started at once."""
        waiting = [node for node in self._nodes if not node.ready(engine)]
        if waiting:
            self._on_phase(Phase.IMPORT, 0)
        for until in (time.monotonic(), deadline):  # asked first: all import at once
            for node in waiting:
                node.prepare(engine, self._workload.family, self._stop, until)

    def _task(self, engine: str, seat: Seat, environment: dict[str, str]) -> Task:
        """Of a rank in `seat`."""
        there = [each for each in self._seats if each.node is seat.node]
        return Task(
            program="rank",
            family=self._workload.family,
            engine=engine,
            ranks=len(there),
            local_rank=there.index(seat),
            share=there[0].place // len(there) if self._beside > 1 else 0,
            shares=self._beside,
            spans=len(self._nodes) > 1,
            environment=environment,
        )

    def _new_group(self, engine: str, build: Build) -> Group:
        self._number = next(self._numbers)
        environment = build.alloc_variables
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
        for number, seat in enumerate(self._seats):
            dial = self._channel.dial(number, child=True)
            log = self._log(number)
            task = self._task(engine, seat, environment)
            process = seat.node.start(task, dial, log)
            rank = Rank(
                number=number, process=process, log=log, token=dial.token, seat=seat,
                local_rank=task.local_rank, address=seat.node.address if task.spans else LOOPBACK,
            )  # fmt: skip
            ranks.append(rank)
        return self._group

    def _log(self, rank: int) -> Path:
        return self._logs / f"group{self._number:03d}-rank{rank}.log"

    def _end(self, *, politely: bool, until: float) -> None:
        """End the live group; return when its device memory is back, or at `until`."""
        assert self._group is not None
        group, self._group = self._group, None
        group.end(politely=politely)
        flat_s = FLAT_S + 2 * max((node.refreshed_s for node in self._nodes), default=0.0)
        left = left_bytes(self._over_baseline_bytes, until, flat_s)
        if left > SLACK_BYTES:
            self._note(f"device memory is {gib(left)} over its baseline after a group's end")

    def _over_baseline_bytes(self) -> int:
        over = [0]
        for node in self._nodes:
            now, then = node.in_use_bytes(), self._baseline_bytes[node]
            mine = {seat.device for seat in self._seats if seat.node is node}
            over += [] if node.lost else [now[place] - then[place] for place in mine]
        return max(over)

    def _start_message(self, candidate: Candidate) -> Start:
        engine = engine_of(self._workload, candidate)
        return Start(
            world_size=self._workload.world_size,
            device_kind=self._device_kind,
            device_uuid="",
            capacity_bytes=self._limits.capacity_bytes,
            store_host="",
            store_port=0,
            model=self._workload.spec(candidate.depth, candidate.build),
            engine=engine.name,
            dtype=self._workload.dtype,
            engine_config=engine.config(candidate, self._workload, self._device_kind),
            seed=self._seed,
            energy=self._nodes[0].energy_at,
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


def on_this_machine(
    device: Device, workload: Workload, node: LocalNode | None = None, **how: Any
) -> Pool:
    """A pool whose ranks run here, side by side on the devices; see `Pool` for the rest.

    Without a `node` they are spawned.
    """
    node = node or LocalNode(device, how["logs"], {}, how["note"], works=False)
    seats = [Seat(node, rank) for rank in range(workload.world_size)]
    return Pool(
        device_kind=device.kind, seats=lambda: seats, close=node.close, workload=workload, **how
    )


def group_numbers(logs: Path) -> Iterator[int]:
    """Numbers of groups, from the first one on that left no log in `logs`."""
    names = (re.fullmatch(r"group(\d+)-rank\d+\.log", path.name) for path in logs.iterdir())
    return itertools.count(1 + max((int(name[1]) for name in names if name), default=0))
