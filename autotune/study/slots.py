"""Slots: each runs one probe at a time, and is asked for another one when it has ended.

What a slot runs is carried out by a thread. All else, what is asked for, told and written, is
done by the thread that calls `run`. On virtual time there are no threads: a probe is carried out
when it is begun, and heard of when its end has come.
"""

from __future__ import annotations

import heapq
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from autotune.errors import NoNodesError
from autotune.measure.runner import Job, Runner, StopRequestedError
from autotune.show.report import Reporter
from autotune.space.candidate import Candidate
from autotune.study.pace import Pace
from autotune.study.predict.memory import Prediction
from autotune.study.prober import ATTEMPTS, Probed, Prober
from autotune.wire.budget import Clock
from autotune.wire.stopping import Phase


@dataclass(frozen=True, kw_only=True)
class Work:
    """A probe to run, and what to do when it has ended."""

    job: Job
    predicted: Prediction
    until_s: float
    """On the budget's clock."""
    attempts: int = ATTEMPTS
    """At most, where the machine disturbs it."""
    told: Callable[[Probed], None]
    excused: Callable[[], None] = lambda: None
    """In the place of `told`, where the user stopped the study in it."""


@dataclass(kw_only=True, eq=False)
class Slot:
    """Where one probe at a time runs."""

    number: int
    runner: Runner
    prober: Prober
    work: Work | None = None
    """What it runs now."""


NextWork = Callable[[Sequence[Slot]], tuple[Slot, Work] | None]
"""What to run next, and in which of the free slots; None as long as nothing is worth it."""


class Slots:
    """Those of one study. What has no machine left is taken out."""

    def __init__(
        self, slots: Sequence[Slot], clock: Clock, pace: Pace, reporter: Reporter
    ) -> None:
        self._slots = list(slots)
        self._pace = pace
        self._reporter = reporter
        self._time = clock.virtual_time
        self._later: list[tuple[float, int, Slot, Future[Probed]]] = []
        """On virtual time: what ends when. The number is the job's."""
        self._begun = 0
        self._ended: queue.SimpleQueue[tuple[Slot, Future[Probed]]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(len(slots), thread_name_prefix="slot")

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    @property
    def running(self) -> list[Candidate]:
        """What is being probed."""
        return [slot.work.job.candidate for slot in self._slots if slot.work is not None]

    def run(self, next_work: NextWork) -> None:
        """Keep the slots busy with `next_work`, until there is none and all has ended.

        Raises:
            StopRequestedError: the user ended the study; what ran is told or excused.
            NoNodesError: no slot is left; likewise.
        """
        try:
            while True:
                while free := [slot for slot in self._slots if slot.work is None]:
                    if (found := next_work(free)) is None:
                        break
                    self._begin(*found)
                if not self.running:
                    return
                self._hear()
        except StopRequestedError:
            while self.running:
                try:
                    self._hear()
                except (StopRequestedError, NoNodesError):
                    continue
            raise

    def close(self) -> None:
        """Wait for what runs, which the study has been asked to stop. What ended unheard of, since
        another slot failed, is excused."""
        self._threads.shutdown()
        while not self._ended.empty():
            slot, _ = self._ended.get()
            if slot.work is not None:
                with suppress(OSError):
                    slot.work.excused()

    def _begin(self, slot: Slot, work: Work) -> None:
        slot.work = work
        self._begun += 1
        probe = partial(slot.prober.measure, work.job, work.predicted, work.until_s, work.attempts)
        if self._time is None:
            future = self._threads.submit(probe)
            future.add_done_callback(lambda done: self._ended.put((slot, done)))
        else:
            done, end = self._time.ahead(partial(_carried_out, probe))
            heapq.heappush(self._later, (end, self._begun, slot, done))

    def _hear(self) -> None:
        """Wait for the next end of a probe, and tell of it."""
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
        self._pace.learn(work.job.candidate, probed)
        work.told(probed)
        if probed.gone:
            if not self._slots:
                raise NoNodesError(probed.gone)
            self._reporter.note(f"{probed.gone}; {len(self._slots)} of the groups go on")


def _carried_out(probe: Callable[[], Probed]) -> Future[Probed]:
    done: Future[Probed] = Future()
    try:
        done.set_result(probe())
    except BaseException as error:  # noqa: BLE001 - it is raised when its time has come
        done.set_exception(error)
    return done
