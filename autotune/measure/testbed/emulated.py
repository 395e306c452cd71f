"""Emulated GPUs: one rank of each group runs, and stands for all."""

from __future__ import annotations

from functools import partial

from autotune.device.cpu import cores
from autotune.device.device import Device
from autotune.measure.runner.counting import count
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.ranks import Layout, on_one_machine
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options, Parallel
from autotune.space.space import Space
from autotune.space.workload import Workload

HOST_BYTES = 2**62
"""The memory of a host that is not here: it is not checked."""


class Emulated(Machine):
    """The `Testbed` on which memory is weighed, and time is modelled.

    What ranks hold is equal by symmetry, or rank 0 holds the most; so it alone runs.
    """

    alone = True
    remark = (
        "on emulated GPUs: torch's own allocator weighed the memory, and time is modelled; nothing"
        " was timed, and the host's memory is not checked"
    )

    def __init__(self, device: Device, spec: str, nodes: int) -> None:
        super().__init__(device, spec)
        self._nodes = nodes

    def space(self, options: Options, known: Workload | None = None) -> Space:
        counted = partial(count, model=options.model.name)
        return resolve(
            options, self.device, HOST_BYTES, cores(), count=counted, known=known,
            lay_out=self._lay_out,
        )  # fmt: skip

    def _lay_out(self, world_size: int, asked: Parallel) -> Layout:
        """Groups that need more devices than one machine has span several."""
        there = len(self.device.infos) // self._nodes
        layout = on_one_machine(self.device, cores(), world_size, asked)
        nodes = -(-world_size // there)
        return Layout(slots=layout.slots, nodes=nodes, beside=max(1, there // world_size))
