"""Groups that run side by side on a machine: whether they disturb each other's timing.

They share memory, power, cooling and the processor. So the study repeats one measurement while all
other groups make the same steps. If that takes noticeably longer, one group at a time makes steps.
So it is until the comparison was made. Groups may start at any time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from autotune.measure.runner import StopRequestedError
from autotune.show.report import Reporter
from autotune.space.outcome import Measurement
from autotune.study.attempts import Probed
from autotune.study.work import NextWork, Slot, Work

NOTICED = 0.03
"""A smaller difference of step times does not count, however certain it is."""
POLL_S = 0.1


class Neighbours:
    """The groups of one study that share machines. The machines are alike."""

    def __init__(self, beside: int, stop: Callable[[], bool], reporter: Reporter) -> None:
        """A machine has at most `beside` groups."""
        self.beside = beside
        self._stop = stop
        self._reporter = reporter
        self.in_turns = True
        self.compared = False
        self._one_at_a_time: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._awaited = 0
        """Number of groups that wait to begin their steps together; 0 if none need to."""
        self._together = threading.Event()
        self._counting = threading.Lock()

    @contextmanager
    def turn(self, machine: str) -> Iterator[None]:
        """Wait until a group on `machine` may make its steps; it makes them in this context.
        Raises StopRequestedError if the user asked to stop."""
        if self._awaited:
            with self._counting:
                self._awaited -= 1
            if not self._awaited:
                self._together.set()
            self._wait(self._together.wait)
            yield
        elif self.in_turns:
            with self._counting:
                steps = self._one_at_a_time[machine]
            self._wait(lambda for_s: steps.acquire(timeout=for_s))
            try:
                yield
            finally:
                steps.release()
        else:
            yield

    def _wait(self, came: Callable[[float], bool]) -> None:
        while not came(POLL_S):
            if self._stop():
                raise StopRequestedError

    def compare(
        self, slots: Sequence[Slot], first: Slot, work: Work, alone: Measurement
    ) -> Iterator[NextWork]:
        """Run the job in all `slots` at once that was measured `alone` in `first`; then decide."""
        self.compared = True
        self._awaited = len(slots)
        waiting = [first, *(slot for slot in slots if slot is not first)]
        found: dict[Slot, Probed] = {}

        def told(slot: Slot, probed: Probed) -> None:
            found[slot] = probed
            self._together.set()  # also if the probe never made steps

        def next_work(free: Sequence[Slot]) -> tuple[Slot, Work] | None:
            if not waiting:
                return None
            slot = waiting.pop(0)
            self._reporter.probing("search", work.job.candidate, work.until_s, slot.number)
            return slot, replace(
                # A repeat would be alone.
                work, attempts=1, told=lambda probed: told(slot, probed), excused=lambda: None
            )  # fmt: skip

        yield next_work
        self._awaited = 0
        beside = found[first].outcome.measurement
        if beside is not None and all(each.outcome.measurement for each in found.values()):
            self._decide(alone, beside)

    def _decide(self, alone: Measurement, beside: Measurement) -> None:
        times = beside.step.median / alone.step.median
        self.in_turns = beside.step.low > alone.step.high and times > 1 + NOTICED
        then = "take turns at timing" if self.in_turns else "are timed at once"
        self._reporter.note(
            f"probes at the same time slow each other down: steps take {times:.3f} times as long;"
            f" groups {then}"
        )
