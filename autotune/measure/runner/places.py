"""The seats of one slot's groups, and the device memory in use there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.measure.runner.group import POLL_S
from autotune.measure.runner.node import RECENT_S, Node, Seat
from autotune.measure.runner.seating import Seating
from autotune.wire.agents import Task

SLACK_BYTES = 64 * 2**20
MOST_S = 20.0
FLAT_S = 0.5
"""If no process is left, memory that is constant for so many seconds will not come back."""


class Places:
    """The seats of a slot's next group, or of the live one."""

    def __init__(self, seating: Seating, slot: int = 0) -> None:
        self.seats: Sequence[Seat] = ()
        self._seating = seating
        self._slot = slot
        self._baseline_bytes: dict[Node, tuple[int, ...]] = {}
        """Bytes in use on all devices of a node, the group's own and others."""

    @property
    def nodes(self) -> list[Node]:
        return list(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def lost(self) -> bool:
        """Whether a node of the seats is gone."""
        return any(node.lost for node in self.nodes)

    def take(self) -> bool:
        """Take seats on nodes that are not lost. Return whether all of them were heard lately.
        Raises NoNodesError if there are none."""
        self.seats = self._seating.seats(self._slot)
        for node in self.nodes:
            self._baseline_bytes.setdefault(node, node.in_use_bytes())
        now = time.monotonic()
        return all(node.heard_since(now - RECENT_S) for node in self.nodes)

    def task(self, seat: Seat, *, engine: str, family: str, environment: dict[str, str]) -> Task:
        there = [each for each in self.seats if each.node is seat.node]
        beside = self._seating.beside
        return Task(
            program="rank",
            family=family,
            engine=engine,
            ranks=len(there),
            local_rank=there.index(seat),
            share=there[0].place // len(there) if beside > 1 else 0,
            shares=beside,
            spans=len(self.nodes) > 1,
            environment=environment,
        )

    def left_bytes(self, until: float, lives: Callable[[], bool]) -> int:
        """Wait until `until` for device memory while a process `lives`; return the rest."""
        flat_s = FLAT_S + 2 * max((node.refreshed_s for node in self.nodes), default=0.0)
        return left_bytes(self._over_baseline_bytes, lives, until, flat_s)

    def _over_baseline_bytes(self) -> int:
        over = [0]
        for node in self.nodes:
            now, then = node.in_use_bytes(), self._baseline_bytes[node]
            mine = {seat.device for seat in self.seats if seat.node is node}
            over += [] if node.lost else [now[place] - then[place] for place in mine]
        return max(over)


def left_bytes(
    over_bytes: Callable[[], int],
    lives: Callable[[], bool],
    until: float = float("inf"),
    flat_s: float = FLAT_S,
) -> int:
    """The final bytes of `over_bytes`, over the baseline, once no more comes back or at `until`.

    At most `SLACK_BYTES` mean that all is back. While a killed process `lives`, its memory will
    still come back: the kernel unpins host memory first.
    """
    began = changed = time.monotonic()
    last = over_bytes()
    while last > SLACK_BYTES:
        now = time.monotonic()
        if now > min(until, began + MOST_S):
            return last
        if now - changed > flat_s:
            if not lives():
                return last
            changed = now
        time.sleep(POLL_S)
        over = over_bytes()
        if over != last:
            last, changed = over, time.monotonic()
    return last
