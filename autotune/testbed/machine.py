"""This machine: its devices, its time, and processes on it."""

from __future__ import annotations

from typing import Any

from autotune.budget import Clock
from autotune.device.cpu import cores, host_memory_bytes
from autotune.device.device import Device
from autotune.folder import provenance
from autotune.options import Options
from autotune.runner import Runner
from autotune.runner.counting import count
from autotune.runner.forks import Forks
from autotune.runner.pool import Pool
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.testbed.resolve import resolve
from autotune.testbed.testbed import Wiring
from autotune.wire.messages import Count, Counted


class Machine:
    """The `Testbed` whose results are measured now."""

    learns = True
    remark = ""

    def __init__(self, device: Device, spec: str) -> None:
        self.device = device
        self.spec = spec

    def space(self, options: Options, known: Workload | None = None) -> Space:
        def counted(asked: Count) -> Counted:
            return count(asked, options.model)

        return resolve(
            options, self.device, host_memory_bytes(), cores(), count=counted, known=known
        )

    def fingerprint(self, space: Space) -> dict[str, Any]:
        return provenance.fingerprint(self.device, space)

    def clock(self, budget_s: float, started: float) -> Clock:
        return Clock(budget_s, started)

    def runner(self, space: Space, wiring: Wiring) -> Runner:
        return Pool(
            device=self.device,
            workload=space.workload,
            limits=space.limits,
            logs=wiring.logs,
            seed=wiring.seed,
            stop=wiring.stop,
            on_phase=wiring.on_phase,
            note=wiring.note,
            budget_s=wiring.budget_s,
            starter=Forks(
                wiring.logs,
                self.device.rank_environment(space.workload.world_size),
                wiring.note,
                space.workload.family,
            ),
        )
