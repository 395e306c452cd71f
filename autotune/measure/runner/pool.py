"""Live worker groups: at most one at a time, kept while its build is in use."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from autotune.device.device import Device
from autotune.errors import NoNodesError
from autotune.measure.runner import Job, NodeLostError, Result, StopRequestedError
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.group import POLL_S, Group, GroupRank
from autotune.measure.runner.helper import Helper
from autotune.measure.runner.node import LOOPBACK, LocalNode, Seat
from autotune.measure.runner.ops import Ops
from autotune.measure.runner.places import SLACK_BYTES, Places
from autotune.measure.runner.process import RankProcess
from autotune.measure.runner.requests import Requests
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import engine_of
from autotune.space.outcome import Verdict
from autotune.space.space import Limits, Space
from autotune.space.trace import Trace, request, why_untraced
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.agents import Task
from autotune.wire.dial import Dial
from autotune.wire.helpers import Described
from autotune.wire.reports import Peaks, Report
from autotune.wire.stopping import Phase

UNTRACED = "memory is predicted by formulas alone, since the models were not traced"
HELPER_POLL_S = 0.01


class Pool:
    """The `Runner` of real devices: at most one live group, reused while the build is the same."""

    def __init__(
        self,
        requests: Requests,
        places: Places,
        wiring: Wiring,
        *,
        channel: Channel,
        numbers: Iterator[int],
        close: Callable[[], None],
    ) -> None:
        """Ranks dial `channel`, which the pool closes; `close` ends the nodes."""
        self._requests = requests
        self._workload = requests.workload
        self._places = places
        self._wiring = wiring
        self._channel = channel
        self._close_nodes = close
        self._ops = Ops(requests.device_kind, requests.workload, wiring)
        self._group: Group | None = None
        self._build: Build | None = None
        self._numbers = numbers
        self._number = 0
        """The number of the live group, or the last one."""
        self._probes = 0
        self._start_s = 0.0
        """Seconds that the live group took to start, until a result reports them."""

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
            with self._wiring.turn(self._places.nodes[0].name):  # only one node is ever shared
                waited_s = time.monotonic() - began
                probed = group.probe(self._requests.probe(self._probes, job), deadline)
            ready = group.ranks[0].ready
            if self._requests.alone and probed.report is not None:
                probed = replace(probed, report=self._of_all(probed.report))
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
        if new_ops := self._ops.missing(job.candidate, self._places.nodes):
            self.retire(deadline)
            self._ops.load(new_ops, self._places.nodes, deadline)
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

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        engine = engine_of(self._workload, space.opening[0]).name
        began = time.monotonic()
        self._take_seats(min(began + limit_s, deadline))
        node = self._places.nodes[0]
        self._get_ready(engine, deadline)
        if not node.ready(engine):
            took_s = time.monotonic() - began
            self._wiring.note(f"{UNTRACED}: imports took over {took_s:.0f} s")
            return None
        limit_s = min(limit_s, deadline - time.monotonic())

        asked = request(space, self._requests.device_kind)
        if not asked.models:
            why = why_untraced(space, self._requests.device_kind)
            self._wiring.note(f"{UNTRACED}: {why}")
            return None

        def start(dial: Dial, log: Path, environment: dict[str, str]) -> RankProcess:
            return node.start(self._task(engine, self._places.seats[0], environment), dial, log)

        helper = Helper(
            asked, start, logs=self._wiring.logs, limit_s=limit_s, channel=self._channel
        )
        with closing(helper):
            while helper.works:
                if self._wiring.stop():
                    raise StopRequestedError
                time.sleep(HELPER_POLL_S)
                helper.poll()
        if isinstance(helper.found, Described):
            return Trace(asked, helper.found)
        self._wiring.note(f"{UNTRACED}: {helper.why}; see {helper.log.name}")
        return None

    def retire(self, until: float) -> None:
        if self._group is not None:
            self._end(politely=True, until=until)

    def kill(self) -> None:
        """Kill every rank at once; for a second Ctrl-C."""
        if self._group is not None:
            self._group.kill()
        self._ops.kill()
        for node in self._places.nodes:
            node.kill()

    def close(self) -> None:
        """End the live group and the channel. Nothing runs after this."""
        if self._group is not None:
            self._group.end(politely=False)
            self._group = None
        self._close_nodes()
        self._channel.close()

    def _launch(self, candidate: Candidate, deadline: float) -> Group | Result:
        """A started group, or why there is none."""
        engine = engine_of(self._workload, candidate).name
        self._get_ready(engine, deadline)
        self._build = candidate.build
        group = self._new_group(engine, candidate)
        failure = group.start(deadline)
        if failure is None:
            for node in self._places.nodes:
                node.succeeded()
            return group
        self._end(politely=False, until=deadline)
        told = failure.verdict in (Verdict.SKIPPED, Verdict.UNSUPPORTED)
        if failure.verdict.bounds_memory or told:
            return failure
        others = [node.give_up(failure.reason) for node in self._places.nodes]
        return self._launch(candidate, deadline) if any(others) else failure

    def _of_all(self, of_one: Report) -> Report:
        """The report of all ranks of a machine, from the one that ran."""

        def whole(peaks: Peaks) -> Peaks:
            return replace(peaks, host_bytes=self._workload.ranks_on_a_node * peaks.host_bytes)

        phases = {n: replace(seen, peaks=whole(seen.peaks)) for n, seen in of_one.phases.items()}
        return replace(of_one, peaks=whole(of_one.peaks), phases=phases)

    def _take_seats(self, until: float) -> None:
        """Take seats; wait for silent nodes until they speak or are lost. Raises NoNodesError."""
        while True:
            if self._places.lost and self._group is not None:
                self._end(politely=False, until=until)
            if self._places.take() or time.monotonic() > until:
                return
            if self._wiring.stop():
                raise StopRequestedError
            time.sleep(POLL_S)

    def _why_gone(self, until: float) -> str:
        """Why no other group can start; empty if one can."""
        try:
            self._take_seats(until)
        except NoNodesError as error:
            return str(error)
        return ""

    def _get_ready(self, engine: str, deadline: float) -> None:
        """Prepare for an immediate start of ranks of `engine`."""
        waiting = [node for node in self._places.nodes if not node.ready(engine)]
        if waiting:
            self._wiring.on_phase(Phase.IMPORT, 0)
        for until in (time.monotonic(), deadline):  # first ask all nodes, so they import at once
            for node in waiting:
                node.prepare(engine, self._workload.family, self._wiring.stop, until)

    def _task(self, engine: str, seat: Seat, environment: dict[str, str]) -> Task:
        family = self._workload.family
        return self._places.task(seat, engine=engine, family=family, environment=environment)

    def _new_group(self, engine: str, candidate: Candidate) -> Group:
        self._number = next(self._numbers)
        ranks: list[GroupRank] = []
        # Known to `kill` before it has a rank.
        self._group = Group(self._channel, ranks, self._wiring, self._requests.start(candidate))
        for number, seat in enumerate(self._places.seats):
            dial = self._channel.dial(number, child=True)
            log = self._log(number)
            task = self._task(engine, seat, candidate.build.alloc_variables)
            process = seat.node.start(task, dial, log)
            rank = GroupRank(
                number=number, process=process, log=log, token=dial.token, seat=seat,
                local_rank=task.local_rank, address=seat.node.address if task.spans else LOOPBACK,
            )  # fmt: skip
            ranks.append(rank)
        return self._group

    def _log(self, rank: int) -> Path:
        return self._wiring.logs / f"group{self._number:03d}-rank{rank}.log"

    def _end(self, *, politely: bool, until: float) -> None:
        """End the live group; return when its device memory is back, or at `until`."""
        assert self._group is not None
        group, self._group = self._group, None
        group.end(politely=politely)
        left = self._places.left_bytes(until, group.lives)
        if left > SLACK_BYTES:
            self._wiring.note(
                f"device memory is {gib(left)} over its baseline after a group's end"
            )


def on_this_machine(
    device: Device,
    workload: Workload,
    limits: Limits,
    wiring: Wiring,
    node: LocalNode | None = None,
) -> Pool:
    """A pool with ranks on this machine; without a `node` they are spawned."""
    node = node or LocalNode(device, wiring.logs, {}, wiring.note, works=False)
    seating = Seating([(node, workload.world_size)], workload.world_size)
    (pool,) = pools(device.kind, seating, workload, limits, [wiring], close=node.close)
    return pool


def pools(
    device_kind: Literal["cpu", "cuda"],
    seating: Seating,
    workload: Workload,
    limits: Limits,
    wirings: Sequence[Wiring],
    *,
    close: Callable[[], None],
    channel: Callable[[], Channel] = Channel,
    alone: bool = False,
) -> list[Pool]:
    """One pool for each of `wirings`, on the seats of its slot. The last pool calls `close`, which
    ends the nodes. With `alone`, one rank of each group stands for all."""
    opened = set(range(len(wirings)))

    def left(slot: int) -> None:
        opened.discard(slot)
        if not opened:
            close()

    numbers = itertools.count(1 + wirings[0].last_number(r"group(\d+)-rank\d+\.log"))
    return [
        Pool(
            Requests(
                device_kind=device_kind,
                workload=workload,
                limits=limits,
                seed=wiring.seed,
                alone=alone,
                folder=str(wiring.logs.absolute()),
            ),
            Places(seating, slot),
            wiring,
            numbers=numbers,
            channel=channel(),
            close=partial(left, slot),
        )
        for slot, wiring in enumerate(wirings)
    ]
