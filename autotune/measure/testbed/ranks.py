"""Ranks of a group, groups at once, and the memory of each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.space.options import Parallel
from autotune.space.space import Fixed
from autotune.units import gib

RANKS_PER_CORE = 2


def chosen_world_size(device: Device, cores: int, asked: int | None) -> tuple[int, str]:
    """Ranks of a group, and why so many; `asked` is the user's number. Raises UsageError if there
    are fewer devices."""
    if device.kind == "cpu":
        machines = len(device.infos)
        available, all_of_it = machines * cores * RANKS_PER_CORE, machines
        several = f"{machines} nodes of " if machines > 1 else ""
        what = f"{several}{cores} cores, {RANKS_PER_CORE} ranks a core"
    elif any(info.uuid.startswith("MIG-") for info in device.infos):
        # CUDA gives a process one MIG instance, and NCCL does not join several.
        available, all_of_it, what = 1, 1, "a MIG instance trains alone"
    else:
        available = all_of_it = len(device.infos)
        what = "devices"
    if asked is None:
        return all_of_it, f"default on {device.kind}"
    if asked > available:
        raise UsageError(
            f"--world-size {asked}: at most {available} here ({what});"
            f" use --world-size {available}"
        )
    return asked, "--world-size"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How groups lie on machines."""

    slots: int = 1
    """Groups that run at once."""
    nodes: int = 1
    """Machines of one group."""
    beside: int = 1
    """Groups on one machine."""
    ranks: int | None = None
    """The most ranks of a group on one machine; None for an even part."""

    def ranks_on_a_node(self, world_size: int) -> int:
        """The most ranks that share a node's memory."""
        return (self.ranks or math.ceil(world_size / self.nodes)) * self.beside


LayOut = Callable[[int, Parallel], Layout]
"""Makes a layout from the ranks of a group and the requested groups. Raises UsageError."""


def on_one_machine(device: Device, cores: int, world_size: int, asked: Parallel) -> Layout:
    """The layout of groups that share the devices of one machine."""
    slots = chosen_slots(device, cores, world_size, asked)
    return Layout(slots=slots, beside=slots)


def chosen_slots(device: Device, cores: int, world_size: int, asked: Parallel) -> int:
    """Number of groups of `world_size` ranks that run at once, on devices of their own. Raises
    UsageError if there are too few devices or cores."""
    if device.kind == "cpu":
        most = max(1, min(cores, cores * RANKS_PER_CORE // world_size))
        auto, what = max(1, cores // world_size), f"{cores} cores"
    else:
        most = auto = max(1, len(device.infos) // world_size)
        what = f"{len(device.infos)} devices"
    if asked == "auto":
        return auto
    if asked > most:
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        fewer = f", or --world-size {fits}" if (fits := len(device.infos) // asked) else ""
        raise UsageError(
            f"--parallel {asked}: {what} hold at most {most} of {ranks} each;"
            f" use --parallel {most}{fewer}"
        )
    return asked


def spread(layout: Layout) -> list[Fixed]:
    """Facts about groups that share machines, or span several."""
    said = []
    if layout.nodes > 1:
        said.append(Fixed("nodes", str(layout.nodes), "a group's ranks are on so many"))
    if layout.slots > 1:
        said.append(Fixed("parallel", str(layout.slots), "--parallel"))
    return said


SAID_BYTES = 64 * 2**20
"""From so many bytes on, others' memory on a device is shown."""


def capacity(device: Device, world_size: int, layout: Layout = Layout()) -> tuple[int, str]:
    """Bytes of a rank's device, and their source."""
    free = [
        (info.capacity_bytes - held, held)
        for info, held in zip(device.infos, device.in_use_bytes(), strict=True)
    ]
    smallest, others = min(free)
    if device.kind == "cpu":
        several = f" of {layout.beside} groups" if layout.beside > 1 else ""
        own = smallest // layout.ranks_on_a_node(world_size)
        return own, f"the host's memory over its ranks{several}"
    less = f", less {gib(others)} that others hold" if others >= SAID_BYTES else ""
    return smallest, f"the smallest device{less}"
