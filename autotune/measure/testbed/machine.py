"""This machine: its devices, its time, and processes on it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from autotune.device import crowding
from autotune.device.cpu import cores, host_memory_bytes
from autotune.device.device import Device
from autotune.measure.runner import Runner, counting
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.node import LocalNode
from autotune.measure.runner.pool import pools
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.ranks import chosen_slots, chosen_world_size
from autotune.measure.testbed.resolve import resolve
from autotune.result.folder import provenance
from autotune.space.engines import engine_for
from autotune.space.options import Options
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.budget import Clock
from autotune.wire.helpers import Count, Counted


class Machine:
    """The `Testbed` whose results are measured now."""

    learns = True
    remark = ""
    alone = False
    """Whether one rank of each group stands for all."""

    def __init__(self, device: Device, spec: str) -> None:
        self.device = device
        self.spec = spec
        self._forks: Forks | None = None

    def space(self, options: Options, known: Workload | None = None) -> Space:
        counted = partial(self._count, options)
        return resolve(
            options, self.device, host_memory_bytes(), cores(), count=counted, known=known
        )

    def _count(self, options: Options, asked: Count) -> Counted:
        """Count models in a fork of the server that forks the study's ranks later."""
        ranks, _ = chosen_world_size(self.device, cores(), options.devices.world_size)
        slots = chosen_slots(self.device, cores(), ranks, options.devices.parallel)
        logs = Path(tempfile.mkdtemp(prefix=counting.PREFIX))
        weakref.finalize(self, shutil.rmtree, logs, ignore_errors=True)
        self._forks = Forks(logs, self._variables(ranks, slots), lambda _: None)
        weakref.finalize(self, self._forks.close)
        stages = options.space.axes.get("zero_stage", (0,))
        engine = engine_for(options.space.engine, min(stages)).name
        start = counting.by(self._forks, engine, options.model.family)
        return counting.count(asked, options.model.name, start)

    def fingerprint(self, space: Space) -> dict[str, Any]:
        return provenance.fingerprint(self.device, space)

    def clock(self, budget_s: float, started: float) -> Clock:
        return Clock(budget_s, started)

    def slots(self, options: Options, space: Space) -> int:
        ranks = space.workload.world_size
        return chosen_slots(self.device, cores(), ranks, options.devices.parallel)

    def beside(self, space: Space, slots: int) -> int:
        return slots

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        return self._variables(space.workload.world_size, slots)

    def _variables(self, ranks: int, slots: int) -> dict[str, str]:
        return self.device.shares(slots, ranks)[0].rank_environment(ranks)

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        first, ranks = wirings[0], space.workload.world_size
        environment = self.variables(space, len(wirings))
        if said := crowding.remark(environment):
            first.note(said)
        node = LocalNode(self.device, first.logs, environment, first.note)
        if self._forks is not None:
            node.take(self._forks)
        alone = self.alone and not space.by_rank
        seats = 1 if alone else ranks
        seating = Seating([(node, len(wirings) * seats)], seats)
        return [
            *pools(
                self.device.kind, seating, space.workload, space.limits, wirings,
                close=node.close, alone=alone,
            )
        ]  # fmt: skip
