"""Slots: each runs one probe at a time, and gets another one at its end.

Each probe runs in a thread. The thread that calls `run` does all else. On virtual time there are
no threads: a probe is carried out at its start, and reported at its end.
"""

from __future__ import annotations

import heapq
import math
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from autotune.errors import NoNodesError
from autotune.measure.runner import StopRequestedError
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.study.attempts import Probed
from autotune.study.neighbours import Neighbours
from autotune.study.pace import Pace
from autotune.study.work import NextWork, Slot
from autotune.wire.budget import Clock, StopFlag, VirtualTime
from autotune.wire.stopping import Phase


class Slots:
    """The slots of one study. A slot without a machine is taken out."""

    def __init__(
        self,
        slots: Sequence[Slot],
        clock: Clock,
        pace: Pace,
        reporter: Reporter,
        *,
        stop: StopFlag,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Slots that share a machine are `neighbours`."""
        self.clock = clock
        self.pace = pace
        self.neighbours = neighbours
        self._slots = list(slots)
        self._reporter = reporter
        self._stop = stop
        self._time = clock.virtual_time
        self._later: list[tuple[float, int, Slot, Future[Probed]]] = []
        """On virtual time: the end of each probe, with the number of its job."""
        self._begun = 0
        self._ended: queue.SimpleQueue[tuple[Slot, Future[Probed]]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(len(slots), thread_name_prefix="slot")

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    @property
    def running(self) -> list[Candidate]:
        return [slot.work.job.candidate for slot in self._slots if slot.work is not None]

    @property
    def in_turns(self) -> bool:
        """Whether groups that share a machine wait for each other to make steps."""
        return self.neighbours is not None and self.neighbours.in_turns

    @property
    def timed_at_once(self) -> int:
        """Number of groups that make steps at the same time."""
        beside = self.neighbours.beside if self.neighbours is not None and self.in_turns else 1
        return math.ceil(len(self) / beside)

    def queue_s(self, each_s: float) -> float:
        """Seconds that another group waits for its turn, if the steps of a group take `each_s`."""
        turns = math.ceil((len(self.running) + 1) / self.timed_at_once)
        return (turns - 1) * each_s

    def run(self, next_work: NextWork) -> None:
        """Keep the slots busy with `next_work`, until there is no more and all probes have ended.

        Raises:
            StopRequestedError: the user ended the study; every running probe is told or excused.
            NoNodesError: no slot is left; likewise.
        """
        try:
            while True:
                while free := [slot for slot in self._slots if slot.work is None]:
                    if self._stop:
                        raise StopRequestedError
                    if (found := next_work(free)) is None:
                        break
                    slot, work = found
                    slot.work = work
                    job = work.job, work.predicted, work.until_s, work.attempts
                    if self._time is None:
                        future = self._threads.submit(slot.prober.measure, *job)
                        future.add_done_callback(partial(self._hear_later, slot))
                    else:
                        self._carry_out(slot, partial(slot.prober.measure, *job), self._time)
                if not self.running:
                    return
                self._hear()
        except StopRequestedError:
            while self.running:
                with suppress(StopRequestedError, NoNodesError):
                    self._hear()
            raise

    def close(self) -> None:
        """Wait for the stopped probes; excuse those without an end, since a slot failed."""
        self._threads.shutdown()
        while not self._ended.empty():
            slot, _ = self._ended.get()
            if slot.work is not None:
                with suppress(OSError):
                    slot.work.excused()

    def _hear_later(self, slot: Slot, done: Future[Probed]) -> None:
        self._ended.put((slot, done))

    def _carry_out(self, slot: Slot, probe: Callable[[], Probed], now: VirtualTime) -> None:
        """On virtual time: run it at once, and report it at its end."""
        done: Future[Probed] = Future()

        def carry_out() -> None:
            try:
                done.set_result(probe())
            except BaseException as error:  # noqa: BLE001 - it is raised when its time has come
                done.set_exception(error)

        _, end = now.ahead(carry_out)
        self._begun += 1
        heapq.heappush(self._later, (end, self._begun, slot, done))

    def _hear(self) -> None:
        """Wait for the next end of a probe, and report it."""
        if self._time is None:
            slot, done = self._ended.get()
        else:
            end, _, slot, done = heapq.heappop(self._later)
            self._time.pass_until(end)
        work, slot.work = slot.work, None
        assert work is not None
        self._reporter.phase(Phase.DONE, 0, slot.number)
        try:
            probed = done.result()
        except StopRequestedError:
            work.excused()
            raise
        if probed.gone:
            self._slots.remove(slot)
        self.pace.learn(work.job.candidate, probed)
        work.told(probed)
        if probed.gone:
            if not self._slots:
                raise NoNodesError(probed.gone)
            self._reporter.note(f"{probed.gone}; {len(self._slots)} of the groups go on")
