"""A worker group: the ranks of one build, and the loop that watches them.

It runs every candidate of that build, and ends at the first failure.
One loop in one thread watches messages, ends of processes, deadlines and the user's stop.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path

from autotune.measure.runner import OUT_OF_BUDGET, NodeLostError, Result, StopRequestedError
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.node import LOOPBACK, RECENT_S, Node, Seat
from autotune.measure.runner.process import RankProcess, ended
from autotune.measure.runner.wiring import Wiring
from autotune.space.outcome import Verdict, others_share
from autotune.units import gib
from autotune.wire.messages import Message, WireError
from autotune.wire.ranks import Entered, Fault, Hello, Probe, Progress, Ready, Start, Stop, Store
from autotune.wire.reports import DURING, Energy, InPhase, Peaks, Report, on_smallest
from autotune.wire.stopping import Phase
from autotune.wire.stream import TamperedError

# Seconds without a sign of life; each step is one.
PHASE_DEADLINE_S = {
    Phase.IMPORT: 120.0,
    Phase.BUILD: 180.0,
    Phase.ENGINE: 300.0,
    Phase.COMPILE: 600.0,
    Phase.WARMUP: 180.0,
    Phase.TIMED: 180.0,
    Phase.HOT: 180.0,
    Phase.EVALUATE: 600.0,
    Phase.SAVE: 600.0,
    Phase.DONE: 30.0,
}
STEP_DEADLINE_S = 30.0
STEP_DEADLINE_SHARE = 0.1
"""Share of the budget for the steps' deadline, which is at least `STEP_DEADLINE_S`."""
PEER_GRACE_S = 3.0
"""Wait this long after a first failure for a peer that names memory as the cause."""
TERM_GRACE_S = 1.0
STOP_GRACE_S = 1.0
POLL_S = 0.1


@dataclass(kw_only=True)
class GroupRank:
    number: int
    process: RankProcess
    log: Path
    seat: Seat
    token: str
    local_rank: int = 0
    address: str = LOOPBACK
    """The address of its node, for the other ranks."""
    peer: Peer | None = None
    phase: Phase = Phase.IMPORT
    entered: float = field(default_factory=time.monotonic)
    """When it entered the phase, or made its last step there."""
    ready: Ready | None = None
    report: Report | None = None
    fault: Fault | None = None
    gone: str = ""
    """Why it sends nothing more: its end, or garbage."""

    @property
    def failed(self) -> bool:
        return self.fault is not None or bool(self.gone)

    def enter(self, phase: Phase) -> None:
        self.phase, self.entered = phase, time.monotonic()


class Group:
    """The ranks of one build and the loop that watches them."""

    def __init__(
        self, channel: Channel, ranks: list[GroupRank], wiring: Wiring, start: Start
    ) -> None:
        self.ranks = ranks
        self.probes = 0
        self._channel = channel
        self._wiring = wiring
        self._deadline_s = phase_deadlines(wiring.budget_s)
        self._oom_kills: dict[Node, int] = {}
        self._first_failure: float | None = None
        self._start = start

    def start(self, deadline: float) -> Result | None:
        """Bring the engine up on every rank; a `Result` says why that failed."""
        self._oom_kills = {rank.seat.node: rank.seat.node.oom_kills() for rank in self.ranks}
        return self._until(lambda: all(r.ready for r in self.ranks), deadline)

    def probe(self, request: Probe, deadline: float) -> Result:
        """Run one candidate on every rank."""
        self.probes += 1
        for rank in self.ranks:
            rank.report = None
            rank.enter(Phase.WARMUP)
            if rank.peer is not None:
                with suppress(OSError):  # the next read sees its end
                    rank.peer.send(request)
        failure = self._until(lambda: all(r.report for r in self.ranks), deadline)
        if failure is not None:
            return failure
        told: dict[Node, list[Report]] = {}
        reports = [rank.report for rank in self.ranks if rank.report is not None]
        each = by_rank(reports, self._start.rank_capacities)
        for rank, report in zip(self.ranks, each, strict=True):
            told.setdefault(rank.seat.node, []).append(report)
        report = merge(list(told.values()))
        verdict = Verdict.PRUNED if report.stopped_early else Verdict.OK
        return Result(verdict=verdict, report=report)

    def alive(self) -> bool:
        """Whether no rank has failed; handles new messages first."""
        self._pump(timeout=0)
        return not any(rank.failed for rank in self.ranks)

    def end(self, *, politely: bool) -> None:
        """End all processes of the group."""
        if politely:
            for rank in self.ranks:
                self._send(rank, Stop())
            self._wait_for_exits(STOP_GRACE_S)
        for rank in self.ranks:
            rank.process.signal(signal.SIGTERM)
        self._wait_for_exits(TERM_GRACE_S)
        self.kill()
        for rank in self.ranks:
            rank.process.reap()
            if rank.peer is not None:
                rank.peer.close()
        self._limit_logs()

    def lives(self) -> bool:
        """Whether a process of the group, maybe a killed one, still holds memory."""
        return any(rank.process.lives() for rank in self.ranks)

    def kill(self) -> None:
        """SIGKILL to every session of the group, with the children of ended ranks."""
        for rank in self.ranks:
            rank.process.signal(signal.SIGKILL)

    def _wait_for_exits(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(
            rank.process.exit_code() is None for rank in self.ranks
        ):
            time.sleep(0.01)

    def _until(self, done: Callable[[], bool], deadline: float) -> Result | None:
        while not done():
            if self._wiring.stop():
                raise StopRequestedError
            self._pump(POLL_S)
            for rank in self.ranks:
                if why := rank.seat.node.lost:
                    raise NodeLostError(why)
            failure = self._failure(deadline)
            if failure is not None:
                return failure
        return None

    def _pump(self, timeout: float) -> None:
        """Handle messages that arrive within `timeout` seconds."""
        peers = {rank.peer: rank for rank in self.ranks if rank.peer and not rank.gone}
        dialling = any(rank.peer is None for rank in self.ranks)
        sources: list[Channel | Peer] = [*peers, *([self._channel] if dialling else [])]
        for source in wait(sources, timeout):  # type: ignore[arg-type]
            if isinstance(source, Channel):
                self._accept(source)
            elif isinstance(source, Peer):
                self._receive(peers[source])
        for rank in self.ranks:
            if rank.peer is not None and rank.peer.stuck and not rank.gone:
                self._receive(rank)
            code = rank.process.exit_code()
            if code is None or rank.gone or rank.peer is not None:
                continue
            if not self._channel.awaited:  # or its last words still count
                rank.gone = f"{ended(code)} before it dialled"
        self._limit_logs()

    def _limit_logs(self) -> None:
        for rank in self.ranks:
            if said := rank.process.limit_log():
                self._wiring.note(said)

    def _accept(self, channel: Channel) -> None:
        peer = channel.accept()
        if peer is None:
            return
        expected = {r.token: r for r in self.ranks if r.peer is None}
        rank = None
        with suppress(WireError):
            hello = peer.receive()
            rank = expected.get(hello.token) if isinstance(hello, Hello) else None
        if rank is None:
            peer.close()
            return
        rank.peer = peer
        if rank.number == 0 or self._start.store_port:
            self._send_start(rank)
        self._receive(rank)  # messages that came with the first one

    def _receive(self, rank: GroupRank) -> None:
        assert rank.peer is not None
        try:
            for message in rank.peer.arrived():
                self._handle(rank, message)
        except TamperedError as error:
            raise NodeLostError(f"{rank.seat.node.name}: the link to it: {error}") from error
        except EOFError:
            rank.gone = self._end_of(rank)
        except WireError as error:
            rank.gone = f"sent an invalid message: {error}"

    def _handle(self, rank: GroupRank, message: Message) -> None:
        match message:
            case Entered(phase):
                rank.enter(phase)
                if rank.number == 0:
                    self._wiring.on_phase(phase, 0)
            case Progress() if rank.number == 0:
                for each in self.ranks:  # they step together
                    each.entered = time.monotonic()
                self._wiring.on_phase(rank.phase, len(message.step_s))
            case Store(host, port) if rank.number == 0:
                self._start = replace(self._start, store_host=host, store_port=port)
                for other in self.ranks[1:]:
                    self._send_start(other)
            case Ready():
                rank.ready = message
            case Report():
                rank.report = message
            case Fault():
                rank.fault = message
            case _:
                raise WireError(f"{type(message).__name__} out of place")

    def _send_start(self, rank: GroupRank) -> None:
        node = rank.seat.node
        start = self._start
        capacities = start.rank_capacities or [start.capacity_bytes] * len(self.ranks)
        mine = replace(
            start,
            capacity_bytes=capacities[rank.number],
            device_uuid=node.uuids[rank.seat.device],
            local_rank=rank.local_rank,
            local_ranks=sum(other.seat.node is node for other in self.ranks),
            address=rank.address,
            energy=node.energy_at,
        )
        self._send(rank, mine)

    def _send(self, rank: GroupRank, message: Message) -> None:
        if rank.peer is not None and not rank.gone:
            with suppress(OSError):  # the next read sees its end
                rank.peer.send(message)

    def _end_of(self, rank: GroupRank) -> str:
        """How a rank ended that closed its connection; waits a moment for its exit code."""
        deadline = time.monotonic() + 1.0
        while (code := rank.process.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return "closed its connection" if code is None else ended(code)

    def _failure(self, deadline: float) -> Result | None:
        """Why the group cannot go on, once that is certain."""
        now = time.monotonic()
        for rank in self.ranks:
            if rank.fault is not None and rank.fault.cause in ("oom", "host_oom"):
                return _out_of_memory(rank, rank.fault, self._start.rank_capacities)
        bad = [rank for rank in self.ranks if rank.failed]
        if bad:
            self._first_failure = self._first_failure or now
            if not self._heard_since(self._first_failure):
                return None  # their errors may come from a lost node
            if len(bad) == len(self.ranks) or now - self._first_failure > PEER_GRACE_S:
                return self._crash(bad)
            return None
        for rank in self.ranks:
            waiting = not (rank.report if self.probes else rank.ready)
            limit_s = self._deadline_s[rank.phase]
            if waiting and now - rank.entered > limit_s and self._heard_since(now - RECENT_S):
                if not rank.process.pid:
                    rank.seat.node.kill(f"it started no process within {limit_s:.0f} s")
                    raise NodeLostError(rank.seat.node.lost)
                return Result(
                    verdict=Verdict.HUNG,
                    reason=f"rank {rank.number} gave no sign for {limit_s:.0f} s"
                    f" in phase {rank.phase}; see {rank.log.name}",
                )
        if now > deadline:
            return Result(verdict=Verdict.SKIPPED, reason=OUT_OF_BUDGET)
        return None

    def _heard_since(self, moment: float) -> bool:
        """Whether all nodes gave a sign of life after `moment`."""
        return all(rank.seat.node.heard_since(moment) for rank in self.ranks)

    def _crash(self, bad: list[GroupRank]) -> Result:
        """The failure of a group in which no rank named memory.

        A rank that ended without a message is the likelier cause of the errors of others.
        """
        silent = [rank for rank in bad if rank.fault is None]
        for rank in silent:
            node = rank.seat.node
            before = self._oom_kills.get(node, node.oom_kills())
            if rank.process.exit_code() == -signal.SIGKILL and node.oom_kills() > before:
                return Result(
                    verdict=Verdict.OOM,
                    reason=f"rank {rank.number} was killed by the host's OOM killer",
                    of_host=self._start.device_kind == "cuda",
                )
        rank = (silent or bad)[0]
        if rank.fault is None:
            return Result(
                verdict=Verdict.CRASHED,
                reason=f"rank {rank.number} {rank.gone} in phase {rank.phase};"
                f" see {rank.log.name}",
            )
        verdict = Verdict.UNSUPPORTED if rank.fault.cause == "unsupported" else Verdict.CRASHED
        return Result(
            verdict=verdict,
            reason=f"rank {rank.number} in phase {rank.fault.phase}: {rank.fault.error};"
            f" see {rank.log.name}",
            unsupported=tuple(rank.fault.axes),
        )


def phase_deadlines(budget_s: float) -> dict[Phase, float]:
    """Seconds without a sign of life allowed in each phase, in a budget of `budget_s`.

    A step of a tenth of the budget is too long to be measured.
    """
    step_s = max(STEP_DEADLINE_S, STEP_DEADLINE_SHARE * budget_s)
    steps = (Phase.WARMUP, Phase.TIMED, Phase.HOT)
    return {p: min(s, step_s) if p in steps else s for p, s in PHASE_DEADLINE_S.items()}


def by_rank(reports: list[Report], capacities: list[int]) -> list[Report]:
    """`reports` of all ranks, with the peaks of each `on_smallest` device."""
    if not capacities:
        return reports
    rank_bytes = [report.peaks.device_bytes for report in reports]
    return [
        replace(
            report,
            rank_bytes=rank_bytes,
            peaks=on_smallest(report.peaks, capacities, rank),
            phases={
                name: replace(found, peaks=on_smallest(found.peaks, capacities, rank))
                for name, found in report.phases.items()
            },
        )
        for rank, report in enumerate(reports)
    ]


def merge(told: list[list[Report]]) -> Report:
    """One report for the ranks of all hosts. It has the largest peaks and the sum of energy. Host
    memory is that of the fullest host, conditions are those of the most disturbed one."""
    hosts = [_of_host(reports) for reports in told]
    return replace(
        hosts[0],
        peaks=Peaks.largest([host.peaks for host in hosts]),
        phases=InPhase.largest([host.phases for host in hosts]),
        state_bytes=max(host.state_bytes for host in hosts),
        conditions=replace(
            max((host.conditions for host in hosts), key=others_share),
            foreign_bytes=max(host.conditions.foreign_bytes for host in hosts),
        ).at_worst([host.conditions for host in hosts]),
        energy=_together([report.energy for reports in told for report in reports]),
    )


def _of_host(reports: list[Report]) -> Report:
    """One report for the ranks of one host: largest peaks; host memory and CPU time summed."""
    first = reports[0]

    def peaks(each: Sequence[Peaks]) -> Peaks:
        return replace(Peaks.largest(each), host_bytes=sum(p.host_bytes for p in each))

    return replace(
        first,
        peaks=peaks([report.peaks for report in reports]),
        phases={
            name: replace(found, peaks=peaks([report.phases[name].peaks for report in reports]))
            for name, found in first.phases.items()
        },
        state_bytes=max(report.state_bytes for report in reports),
        conditions=replace(
            first.conditions,
            own_cpu_s=sum(r.conditions.own_cpu_s for r in reports),
            foreign_bytes=max(r.conditions.foreign_bytes for r in reports),
        ).at_worst([r.conditions for r in reports]),
    )


def _together(parts: list[Energy | None]) -> Energy | None:
    """The sum, with each device counted once; None if one is unknown."""
    known = {part.covers: part.joules for part in parts if part is not None}
    if None in parts:
        return None
    return Energy(sum(known.values()), ", ".join(sorted(known)))


def _out_of_memory(rank: GroupRank, fault: Fault, capacities: Sequence[int] = ()) -> Result:
    where = "host memory" if fault.cause == "host_oom" else "memory"
    during = DURING.get(fault.phase, f"in phase {fault.phase}")
    asked = f", asking for {gib(fault.requested_bytes)} more" if fault.requested_bytes else ""
    return Result(
        verdict=Verdict.OOM,
        reason=f"rank {rank.number} ran out of {where} {during}{asked}",
        peaks=fault.peaks and on_smallest(fault.peaks, capacities, rank.number),
        of_host=fault.cause == "host_oom",
        foreign_bytes=fault.foreign_bytes,
    )
