"""Emulated GPUs: one rank of each group runs, and stands for all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from autotune.device.cpu import cores
from autotune.device.device import Device
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.ranks import Layout, on_one_machine
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options, Parallel
from autotune.space.space import NO_LIMIT, Space
from autotune.space.workload import Workload


class Emulated(Machine):
    """Memory is weighed, and time is modelled. Only rank 0 runs: it holds as much as any."""

    alone = True
    remark = "the host's memory was not checked: that of the emulated machine is not known"

    def __init__(self, device: Device, spec: str, nodes: int) -> None:
        super().__init__(device, spec)
        self._nodes = nodes

    def space(self, options: Options, known: Workload | None = None) -> Space:
        counted = partial(self._count, options)
        return resolve(
            options, self.device, NO_LIMIT, cores(), count=counted, known=known,
            lay_out=self._lay_out,
        )  # fmt: skip

    def _lay_out(self, world_size: int, asked: Parallel) -> Layout:
        """Groups that need more devices than one machine has span several."""
        there = len(self.device.infos) // self._nodes
        layout = on_one_machine(self.device, cores(), world_size, asked)
        return replace(layout, nodes=-(-world_size // there))
