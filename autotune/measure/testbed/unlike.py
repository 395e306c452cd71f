"""Micro-batches by rank, for devices that are not alike, and the memory of each rank's device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.device.cards import CARDS
from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.candidates import points_of
from autotune.space.axes import AUTO, AXES, SAME
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.units import gib

NAME = "micro_batch_per_rank"
_FLAG = AXES[NAME].flag
_STEP = 1.2
"""The next ratio of ranks' samples is so many times larger, at most. Two cards at the best of such
ratios have 95 % of the best rate, or more."""
_BEYOND = 1
"""Steps beyond the speeds of data sheets: cards may differ by more."""


def rank_capacities(
    options: Options, device: Device, world_size: int, own_bytes: int
) -> tuple[int, ...]:
    """Capacity of each rank's device; empty if they are alike, or ranks have one micro-batch.

    `own_bytes` is what the smallest has, and on the CPU each rank's part of the host. Raises
    UsageError if the options name more than there is, or another number of sizes.
    """
    if NAME not in options.space.axes:
        return ()
    own = [own_bytes] * world_size
    if device.kind == "cuda":
        held = device.in_use_bytes()[:world_size]
        own = [info.capacity_bytes - of for info, of in zip(device.infos, held, strict=False)]
    asked = options.limits.capacity_bytes
    found = asked if isinstance(asked, tuple) else [asked or each for each in own]
    flag = f"--capacity {','.join(map(gib, found))}"
    if len(found) != world_size:
        raise UsageError(f"{flag}: {len(found)} sizes for {world_size} ranks; write one for each")
    if device.kind == "cpu" and sum(found) > sum(own):
        raise UsageError(f"{flag}: all ranks together have {gib(sum(own))}; use less")
    for rank, (size, there) in enumerate(zip(found, own, strict=True)):
        if size > there and device.kind == "cuda":
            raise UsageError(f"{flag}: the device of rank {rank} has {gib(there)}; use less")
    return tuple(found) if len(set(found)) > 1 else ()


def with_vectors(
    axes: Mapping[str, tuple[Any, ...]],
    device: Device,
    world_size: int,
    capacities: Sequence[int],
    sizes: Sequence[int],
) -> tuple[dict[str, tuple[Any, ...]], list[Candidate] | None]:
    """`axes` with the vectors that they name, and their candidates; None without vectors.

    The micro_batch of such a candidate is what the smallest device takes for the same share of
    memory. `capacities` are empty if alike; vectors of "auto" grow with `sizes`. Raises UsageError
    if there is one rank, or a vector has not one value for each.
    """
    if (asked := axes.get(NAME)) is None:
        return dict(axes), None
    if world_size == 1:
        raise UsageError(f"{_FLAG} {','.join(asked)}: there is one rank; use --micro-batch")
    each = capacities or [1] * world_size
    effective = {}
    for word in asked:
        for vector in _vectors(word, device, each, sizes):
            if len(vector) != world_size:
                raise UsageError(
                    f"{_FLAG} {word}: {len(vector)} micro-batches for {world_size} ranks; write"
                    f" one for each, e.g. {'+'.join(['2'] * (world_size - 1))}+4"
                )
            least = max(-(-b * min(each) // of) for b, of in zip(vector, each, strict=True))
            effective["+".join(map(str, vector))] = least
    found = dict(axes) | {
        "micro_batch": tuple(sorted(set(effective.values()))), NAME: tuple(effective),
    }  # fmt: skip
    points = points_of(found | {"micro_batch": (1,)})
    return found, [replace(c, micro_batch=effective[c.micro_batch_per_rank]) for c in points]


def _vectors(
    word: str, device: Device, capacities: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """The vectors that a value of the axis stands for."""
    if word not in (SAME, AUTO):
        yield tuple(map(int, word.split("+")))
        return
    alike = [1.0] * len(capacities)
    shares = [alike] if word == SAME else [alike, *_shares(device, capacities)]
    for size in filter(_is_round, sizes):
        for share in shares:
            yield tuple(math.floor(size * of) for of in share)


def _shares(device: Device, capacities: Sequence[int]) -> Iterator[list[float]]:
    """Samples of each rank for one of the least: by memory, and in steps from alike ranks to the
    speeds of data sheets and beyond; to memory where they do not know the cards."""
    by_memory = [size / min(capacities) for size in capacities]
    yield by_memory
    speeds = {card.nvml_name: card.flops_per_s for card in CARDS}
    known = [speeds.get(info.name) for info in device.infos[: len(capacities)]]
    rates = [rate for rate in known if rate is not None]
    most = by_memory
    if len(rates) == len(capacities):
        most = [rate / min(rates) for rate in rates]
    steps = math.ceil(math.log(max(most)) / math.log(_STEP))
    for step in range(1, steps + _BEYOND + 1 if steps else 1):
        yield [of ** (step / steps) for of in most]


def _is_round(size: int) -> bool:
    """Whether it is a power of 2, or 3 times one."""
    return size in (1, 3) or (size % 2 == 0 and _is_round(size // 2))
