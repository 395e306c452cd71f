"""The nodes of each group, while nodes may be lost.

A node never has more groups than were planned for it, since they share its memory and devices. A
group whose node is lost moves to free seats, or ends.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from autotune.errors import NoNodesError
from autotune.measure.runner.node import Node, Seat

Block = tuple[Seat, ...]


class Seating:
    """Seats of groups of one size, each on as few nodes as possible.

    A group keeps its seats until one of their nodes is lost. Then it gets others, if any are free.
    """

    def __init__(
        self, places: Sequence[tuple[Node, int]], ranks: int, slots: int | None = None
    ) -> None:
        """`places` are nodes with their ranks. `slots` groups run at once, or as many as fit."""
        # Groups that share a node come first: a comparison needs two on one node.
        most_first = sorted(places, key=lambda each: -(each[1] // ranks))
        self._all = [[Seat(node, place) for place in range(count)] for node, count in most_first]
        self._ranks = ranks
        self._blocks = _blocks(self._all, ranks)[:slots]
        self._of: dict[int, Block] = {}
        self._lock = threading.Lock()

    @property
    def groups(self) -> int:
        """Groups that can run at once."""
        return len(self._blocks)

    @property
    def nodes(self) -> int:
        """The most nodes of one group."""
        return max(map(len, map(_nodes, self._blocks)), default=0)

    @property
    def beside(self) -> int:
        """The most groups that share a node."""
        each = Counter(node for block in self._blocks for node in _nodes(block))
        return max(each.values(), default=1)

    @property
    def ranks_on_a_node(self) -> int:
        """The most ranks of one group on one node."""
        each = (Counter(seat.node for seat in block) for block in self._blocks)
        return max((max(counts.values()) for counts in each), default=0)

    def seats(self, slot: int) -> Block:
        """The seats of that slot's group from now on. Raises NoNodesError if none are left."""
        with self._lock:
            if slot in self._of and not any(seat.node.lost for seat in self._of[slot]):
                return self._of[slot]
            self._of.pop(slot, None)
            taken = {seat for block in self._of.values() for seat in block}
            groups = Counter(node for block in self._of.values() for node in _nodes(block))
            # A group that spans nodes shares none of them.
            there = [
                seats
                for seats in self._all
                if not any(seat.node.lost for seat in seats)
                and groups[seats[0].node] < self.beside
                and (len(seats) >= self._ranks or taken.isdisjoint(seats))
            ]
            free = (b for b in _blocks(there, self._ranks) if taken.isdisjoint(b))
            if (found := next(free, None)) is None:
                lost = [seats[0].node.lost for seats in self._all if seats and seats[0].node.lost]
                raise NoNodesError("; ".join(lost) or "no free node is left")
            self._of[slot] = found
            return found


def _nodes(block: Block) -> set[Node]:
    return {seat.node for seat in block}


def _blocks(nodes: Sequence[Sequence[Seat]], ranks: int) -> list[Block]:
    """A node that has room for a whole group gets whole groups. Other nodes are joined, and no
    two groups share them. The first groups are on nodes of their own."""
    found: list[Block] = []
    small: list[Sequence[Seat]] = []
    for seats in nodes:
        if ranks <= len(seats):
            whole = range(0, len(seats) - ranks + 1, ranks)
            found += (tuple(seats[first : first + ranks]) for first in whole)
            continue
        small.append(seats)
        if sum(map(len, small)) >= ranks:
            found.append(_spread(small, ranks))
            small = []
    return sorted(found, key=lambda block: block[0].place)


def _spread(nodes: Sequence[Sequence[Seat]], ranks: int) -> Block:
    """One group over `nodes`, as evenly as possible."""
    counts = [0] * len(nodes)
    for _ in range(ranks):
        room = [place for place, seats in enumerate(nodes) if counts[place] < len(seats)]
        counts[min(room, key=counts.__getitem__)] += 1
    each = zip(nodes, counts, strict=True)
    return tuple(seat for seats, count in each for seat in seats[:count])
