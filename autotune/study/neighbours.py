"""Groups that run side by side on one machine: whether they disturb each other's timing.

They share memory, power, cooling and the processor. So a candidate that was measured alone is
measured once more while all others make the same steps. Where that takes noticeably longer, and
until it is known, one group at a time makes steps; groups start whenever they like.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from autotune.outcome import Measurement
from autotune.report import Reporter
from autotune.runner import StopRequestedError
from autotune.study.prober import Probed
from autotune.study.slots import Slot, Slots, Work

NOTICED = 0.03
"""Steps that differ by no more are as good as alone, however surely they differ."""
POLL_S = 0.1


class Neighbours:
    """Of one machine."""

    def __init__(self, stop: Callable[[], bool], reporter: Reporter) -> None:
        self._stop = stop
        self._reporter = reporter
        self.in_turns = True
        self.compared = False
        self._one_at_a_time = threading.Lock()
        self._awaited = 0
        """Groups that are to begin their steps together; 0 where they need not."""
        self._together = threading.Event()
        self._counting = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until a group may make its steps, which it does within this.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        if self._awaited:
            with self._counting:
                self._awaited -= 1
            if not self._awaited:
                self._together.set()
            self._wait(self._together.wait)
            yield
        elif self.in_turns:
            self._wait(lambda for_s: self._one_at_a_time.acquire(timeout=for_s))
            try:
                yield
            finally:
                self._one_at_a_time.release()
        else:
            yield

    def _wait(self, came: Callable[[float], bool]) -> None:
        while not came(POLL_S):
            if self._stop():
                raise StopRequestedError

    def compare(self, slots: Slots, first: Slot, work: Work, alone: Measurement) -> None:
        """Run what was measured `alone`, in the slot `first`, in all slots at once; decide."""
        self.compared = True
        self._awaited = len(slots)
        waiting = [first, *(slot for slot in slots if slot is not first)]
        found: dict[Slot, Probed] = {}

        def told(slot: Slot, probed: Probed) -> None:
            found[slot] = probed
            self._together.set()  # also where it did not come to its steps

        def next_work(free: Sequence[Slot]) -> tuple[Slot, Work] | None:
            if not waiting:
                return None
            slot = waiting.pop(0)
            self._reporter.probing("search", work.job.candidate, work.until_s, slot.number)
            return slot, replace(work, told=lambda probed: told(slot, probed), excused=_nothing)

        slots.run(next_work)
        self._awaited = 0
        beside = found[first].outcome.measurement
        if beside is not None and all(each.outcome.measurement for each in found.values()):
            self._decide(alone, beside)

    def _decide(self, alone: Measurement, beside: Measurement) -> None:
        longer = beside.step.median / alone.step.median - 1
        apart = beside.step.low > alone.step.high or beside.step.high < alone.step.low
        self.in_turns = apart and abs(longer) > NOTICED
        then = "take turns at timing" if self.in_turns else "are timed at once"
        more = "longer" if longer > 0 else "less long"
        self._reporter.note(
            f"side by side, steps take {abs(longer):.1%} {more} than alone: groups {then}"
        )


def _nothing() -> None:
    pass
