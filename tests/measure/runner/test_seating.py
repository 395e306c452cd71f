"""Who runs where: on as few nodes as can be, and on others once one of these is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.errors import NoNodesError
from autotune.measure.runner.seating import Seating


class FakeNode:
    """So many devices of a node that is not there."""

    refreshed_s = 0.0
    energy_at = ""
    address = "127.0.0.1"

    def __init__(self, name: str, devices: int = 1) -> None:
        self.name = name
        self.uuids = tuple(f"{name}-{number}" for number in range(devices))
        self.in_use = [0] * devices
        self.lost = ""

    def heard_since(self, moment: float) -> bool:
        return True

    def in_use_bytes(self) -> tuple[int, ...]:
        return tuple(self.in_use)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{self.name} is asked for {name}")


def nodes(*devices: int) -> list[FakeNode]:
    return [FakeNode(f"n{number}", count) for number, count in enumerate(devices, 1)]


def seating(of: Sequence[FakeNode], ranks: int, slots: int | None = None) -> Seating:
    return Seating([(node, len(node.uuids)) for node in of], ranks, slots)


def where(of: Seating, slot: int) -> list[str]:
    return [seat.node.uuids[seat.device] for seat in of.seats(slot)]


def test_groups_that_fit_on_a_node_are_side_by_side_on_it() -> None:
    made = seating(nodes(4, 4), 2)
    assert (made.groups, made.nodes, made.beside, made.ranks_on_a_node) == (4, 1, 2, 2)
    assert [where(made, slot) for slot in range(4)] == [
        ["n1-0", "n1-1"], ["n2-0", "n2-1"], ["n1-2", "n1-3"], ["n2-2", "n2-3"],
    ]  # fmt: skip


def test_what_is_left_of_nodes_that_others_use_is_no_group() -> None:
    made = seating(nodes(8, 8, 8), 3)
    assert made.groups == 6
    used = [seat for slot in range(6) for seat in made.seats(slot)]
    assert len(set(used)) == 18
    assert all(len({seat.node for seat in made.seats(slot)}) == 1 for slot in range(6))
    with pytest.raises(NoNodesError, match="no free node is left"):
        made.seats(6)


def test_a_group_that_spans_nodes_is_spread_evenly() -> None:
    made = seating(nodes(4, 4), 6)
    assert (made.groups, made.nodes, made.beside, made.ranks_on_a_node) == (1, 2, 1, 3)
    assert where(made, 0) == ["n1-0", "n1-1", "n1-2", "n2-0", "n2-1", "n2-2"]
    uneven = seating(nodes(2, 4), 5)
    assert where(uneven, 0) == ["n1-0", "n1-1", "n2-0", "n2-1", "n2-2"]


def test_a_group_that_is_alone_shares_its_node_with_nobody() -> None:
    assert seating(nodes(8), 1, slots=1).beside == 1
    assert seating(nodes(8), 1).beside == 8


def test_groups_are_on_nodes_of_their_own_while_there_are_some() -> None:
    made = seating(nodes(8, 8), 4, slots=2)
    assert made.beside == 1
    assert [where(made, slot)[0] for slot in range(2)] == ["n1-0", "n2-0"]


def test_the_first_group_has_a_neighbour_where_any_has() -> None:
    made = seating(nodes(2, 4, 2), 2)
    assert [where(made, slot)[0] for slot in range(4)] == ["n2-0", "n1-0", "n3-0", "n2-2"]


def test_small_nodes_are_paired_as_they_are_listed() -> None:
    assert seating(nodes(6, 2, 6, 2), 8).groups == 2
    assert seating(nodes(3, 1, 3, 1), 4).groups == 2


@pytest.mark.parametrize(("places", "ranks", "slots"), [((4, 8), 4, 2), ((8, 16), 4, 3)])
def test_a_moved_group_shares_as_laid_out(places: tuple[int, int], ranks: int, slots: int) -> None:
    of = nodes(*places)
    made = seating(of, ranks, slots)
    before = {slot: where(made, slot)[0] for slot in range(slots)}
    of[0].lost = "node n1 was lost"
    for slot, seat in before.items():
        if seat.startswith("n1"):
            with pytest.raises(NoNodesError, match="node n1 was lost"):
                made.seats(slot)
        else:
            assert where(made, slot)[0] == seat


def test_a_group_keeps_its_seats_until_one_of_its_nodes_is_lost() -> None:
    of = nodes(1, 1, 1, 1, 1)
    made = seating(of, 2)
    assert made.groups == 2
    first, second = where(made, 0), where(made, 1)
    assert (first, second) == (["n1-0", "n2-0"], ["n3-0", "n4-0"])
    assert where(made, 0) == first
    of[1].lost = "node n2 was lost"
    assert where(made, 1) == second
    assert where(made, 0) == ["n1-0", "n5-0"]
    of[4].lost = "node n5 was lost"
    with pytest.raises(NoNodesError, match="node n2 was lost; node n5 was lost"):
        made.seats(0)
    assert where(made, 1) == second
