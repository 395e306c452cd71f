"""Pools of a study, one for each of its slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from autotune.measure.runner import Runner
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.places import Places
from autotune.measure.runner.pool import Pool, group_numbers
from autotune.measure.runner.requests import Requests
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.space.space import Space


def pools(
    device_kind: Literal["cpu", "cuda"],
    seating: Seating,
    space: Space,
    wirings: Sequence[Wiring],
    *,
    close: Callable[[], None],
    channel: Callable[[], Channel] = Channel,
) -> list[Runner]:
    """One for each of `wirings`, on the seats of its slot; with the last one, `close` ends the
    nodes."""
    opened = set(range(len(wirings)))

    def left(slot: int) -> None:
        opened.discard(slot)
        if not opened:
            close()

    numbers = group_numbers(wirings[0].logs)
    return [
        Pool(
            Requests(device_kind, space.workload, space.limits, wiring.seed),
            Places(seating, slot),
            wiring,
            numbers=numbers,
            channel=channel(),
            close=partial(left, slot),
        )
        for slot, wiring in enumerate(wirings)
    ]
