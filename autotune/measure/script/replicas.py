"""Replicas: which ranks of a launch train on the same data, by the evidence of each rank.

The evidence, in this order:

- the dimensions that the script's library names;
- groups that reduce gradients, whose ranks have different data;
- groups that exchange activations, whose ranks work on the same data;
- digests of the data.

Ranks may do both with groups: those that cut the same sequences, and those that send each other's
tokens to experts. Digests tell which.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse

from autotune.wire.hook import Place

Places = Mapping[int, Place]
"""By rank."""
Digests = Mapping[int, tuple[int, ...]]
"""By rank, of its data."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How the ranks of a launch share data and model."""

    replicas: Sequence[Collection[int]]
    """The ranks of each data-parallel replica."""
    degrees: dict[str, int] = field(default_factory=dict)
    """The degrees that were seen, by name: dp, tp, pp, cp; without those of 1."""
    known: bool = True
    """Whether there is evidence."""

    @property
    def context(self) -> int:
        """The most parts into which a replica may cut its sequences."""
        return self.degrees.get("cp", 1)

    @property
    def pipelined(self) -> bool:
        return "pp" in self.degrees


def apart(ranks: Iterable[int], *, known: bool = True) -> Sharing:
    """The sharing if each of `ranks` has data of its own."""
    replicas = [(rank,) for rank in ranks]
    return Sharing(replicas=replicas, degrees=_above_1(dp=len(replicas)), known=known)


def as_asked(ranks: Iterable[int], **degrees: int) -> Sharing:
    """The sharing by the requested `degrees`, without evidence: neighbours share data."""
    numbers, each = sorted(ranks), math.prod(degrees.values())
    if each == 1 or len(numbers) % each:
        return apart(numbers, known=False)
    replicas = [numbers[n : n + each] for n in range(0, len(numbers), each)]
    found = _above_1(dp=len(replicas), **degrees)
    return Sharing(replicas=replicas, degrees=found, known=False)


def sharing(places: Places, parts: int = 1) -> Sharing:
    """The sharing that `places` show, if batches have 1 / `parts` of the requested length."""
    digests = _digests(places) or {}
    places = _with_experts(places, {} if parts > 1 else digests)
    averaged = _averaged(places)
    named = _named(places, max(map(len, averaged)))
    if named is not None:
        return named
    found = _replicas(places, averaged, digests, parts)
    if found is None:
        return apart(places, known=False)
    first, each = found[0], len(places) // len(found)
    data = {tuple(places[rank].batches) for rank in first}
    # Ranks that average gradients although they have the same data: each cuts it in the model.
    peers = next(group for group in averaged if first[0] in group)
    same = [rank for rank in peers if rank in first and _same(digests, rank, first[0])]
    whole = all(places[rank].parts == places[same[0]].parts for rank in same)  # no experts
    cutting = len(same) if whole else 1
    context = max(parts, cutting)
    # Else no rank has the other parts.
    if parts > 1 and (each % context or max(len(data), cutting) < parts):
        return sharing(places)
    stages = each // (sum(not places[rank].fed for rank in first) or each)
    split = each // (stages * context)
    degrees = _above_1(dp=len(found), tp=split, pp=stages, cp=context)
    return Sharing(replicas=found, degrees=degrees)


def _above_1(**degrees: int) -> dict[str, int]:
    return {name: size for name, size in degrees.items() if size > 1}


def _named(places: Places, averaged: int) -> Sharing | None:
    """The sharing by named dimensions. None if not all ranks are named, or too few average."""
    sizes = {role: size for role, (size, _) in next(iter(places.values())).degrees.items()}
    same = all({r: s for r, (s, _) in p.degrees.items()} == sizes for p in places.values())
    whole = math.prod(sizes.values()) == len(places)
    if not sizes or not same or not whole:
        return None
    if averaged > sizes.get("dp", 1) * sizes.get("cp", 1):
        return None
    replicas = defaultdict(list)
    for rank, place in places.items():
        replicas[place.degrees.get("dp", [1, 0])[1]].append(rank)
    return Sharing(replicas=list(replicas.values()), degrees=_above_1(**sizes))


def _with_experts(places: Places, digests: Digests) -> Places:
    """The places, where exchanges with experts count as averaging: those of ranks with different
    data, or of ranks that average gradients, if some of their parameters differ. If only some of
    all ranks have the same data, these share it on purpose."""
    alike = len(set(digests.values())) <= 1

    def experts(group: Sequence[int]) -> bool:
        held = [places[rank].parts for rank in group if rank in places]
        averaged = any(set(group) <= set(each) for each in places[group[0]].averages)
        own = len({digests.get(rank) for rank in group}) == len(group)
        differ = any(each != held[0] for each in held)
        return (own and (differ or not any(held))) or (alike and averaged and differ)

    return {
        rank: replace(
            place,
            averages=[*place.averages, *filter(experts, place.swaps)],
            swaps=list(filterfalse(experts, place.swaps)),
        )
        for rank, place in places.items()
    }


def _averaged(places: Places) -> list[list[int]]:
    """Ranks that average gradients, also through others. Stages that share an embedding do not."""
    groups = [
        [other for other in group if other in places and places[other].fed == place.fed]
        for place in places.values()
        for group in place.averages
    ]
    return _joined(places, groups)


def _replicas(
    places: Places, averaged: list[list[int]], digests: Digests, parts: int
) -> list[list[int]] | None:
    """Replicas by the use of groups; None without evidence."""
    peers = {rank: set(group) for group in averaged for rank in group}
    if parts == 1 and any(
        rank in digests and other in digests and digests[rank] != digests[other]
        for rank, place in places.items()
        for group in [*place.shares, *place.swaps]
        for other in peers[rank].intersection(group)
    ):
        return None  # each has its part of a sequence, or of a loss over all
    shares = [
        [rank, other]
        for rank, place in places.items()
        for group in [*place.shares, *place.swaps, *place.features]
        for other in group
        if other in places and (other not in peers[rank] or (
            group not in place.features and (parts > 1 or _same(digests, rank, other))
        ))
    ]  # fmt: skip
    found = _joined(places, shares)
    cut = any(rank != other and other in peers[rank] for rank, other in shares)
    sizes = set(map(len, averaged))
    if parts == 1 and not cut and len(sizes) == 1 and sizes != {1}:
        own = len(set(digests.values())) == len(places)
        if len(found) not in sizes and not own:  # exchanges in compiled code are not seen
            found = [list(each) for each in zip(*averaged, strict=True)]
        return found
    if len(found) == len(places) and sizes == {1}:
        if not digests:
            return None
        same = defaultdict(list)
        for rank, digest in digests.items():
            same[digest].append(rank)
        held = {rank: {tuple(part) for part in places[rank].parts} for rank in digests}
        groups = []
        for group in same.values():
            common = set.intersection(*(held[rank] for rank in group))
            differ = any(held[rank] != common for rank in group)
            if differ and not common:
                return None  # other values may be dropped out in each, too
            if differ or not common:  # else each has a whole model, and may average it later
                groups.append(group)
        found = _joined(places, groups)
    feeding = [each for each in found if not all(places[rank].fed for rank in each)]
    return [sorted(places)] if len(feeding) == 1 else found


def _same(digests: Digests, rank: int, other: int) -> bool:
    return rank in digests and digests[rank] == digests.get(other)


def _digests(places: Places) -> dict[int, tuple[int, ...]] | None:
    """Digests of each rank's data, of those that feed others; None if they show nothing."""
    found = {rank: tuple(place.batches) for rank, place in places.items() if not place.fed}
    if not all(found.values()):
        return None
    constant = any(len(set(each)) == 1 for each in found.values())
    return None if constant and len(set(found.values())) < len(found) else found


def _joined(ranks: Iterable[int], groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Disjoint sets of `ranks`, in order; the ranks of each of `groups` are in one set."""
    sets = {rank: {rank} for rank in ranks}
    for group in groups:
        for rank in group[1:]:
            if sets[rank] is not (first := sets[group[0]]):
                first |= sets[rank]
                sets |= dict.fromkeys(sets[rank], first)
    return sorted(map(sorted, {id(each): each for each in sets.values()}.values()))
