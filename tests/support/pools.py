"""Worker groups without a study: a pool, and its notes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import psutil

from autotune.device.device import Device, DeviceInfo, EnergyCounters
from autotune.measure.runner import Result, forks, local
from autotune.measure.runner.forks import Forks
from autotune.measure.runner.node import LocalNode
from autotune.measure.runner.pool import on_this_machine
from autotune.measure.runner.wiring import Wiring
from autotune.space.candidate import Candidate
from autotune.space.space import Limits
from autotune.wire.stopping import Phase
from tests.support import defaults
from tests.support.programs import FAULTY_RANK

MIB = 2**20
WORKER = local.WORKER
SMALL = Candidate(depth=1, seq_len=32, micro_batch=1)
RULE = defaults.rule(warmup_tolerance=0.5, warmup_limit_s=0.1, timed_limit_s=0.1)


class Cpu:
    """The CPU, without the machine's own limits."""

    kind = "cpu"
    infos = (
        DeviceInfo(index=0, uuid="cpu", name="a processor", capacity_bytes=16 * 2**30, bf16=False),
    )

    def in_use_bytes(self) -> tuple[int, ...]:
        return (0,)

    def shares(self, groups: int, ranks: int) -> list[Cpu]:
        return [self] * groups

    def energy(self) -> EnergyCounters:
        return EnergyCounters()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


class Gpu(Cpu):
    """A GPU as far as the pool goes: no rank runs on it."""

    kind = "cuda"


class Kept(LocalNode):
    """Fork servers that stay for the next test; their ranks go wrong where FAULT says so."""

    all: ClassVar[list[Kept]] = []

    def __init__(self, device: Device | Cpu | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="autotune-test-")
        device = device or Cpu()
        environment = device.rank_environment(len(device.infos))
        super().__init__(device, Path(self._folder.name), environment, print)  # type: ignore[arg-type]
        self.succeeded()
        self.all.append(self)

    def prepare(self, engine: str, family: str, stop: Callable[[], bool], deadline: float) -> None:
        real, forks.SERVER = forks.SERVER, FAULTY_RANK
        try:
            super().prepare(engine, family, stop, deadline)
        finally:
            forks.SERVER = real

    def of(self, device: Device | Cpu) -> Kept:
        """The same on that device."""
        self._device = device  # type: ignore[assignment]
        self._extensions = {}
        return self

    def close(self) -> None:
        """Later."""

    def end(self) -> None:
        super().close()
        self.all.remove(self)
        self._folder.cleanup()


def servers(forking: Forks) -> dict[str, int]:
    """Process ids of its fork servers, by engine."""
    return {engine: server.process.pid for engine, server in forking._servers.items()}


@cache
def kept() -> Kept:
    """One for all tests."""
    return Kept()


class Started:
    """A pool, and its notes. Its ranks are forked, unless a test replaced them."""

    def __init__(
        self,
        logs: Path,
        *,
        device: Callable[[], Device | Cpu] = Cpu,
        world_size: int = 1,
        capacity_bytes: int = 4 * 2**30,
        engine: str = "auto",
        dtype: str = "fp32",
        width: int = 64,
        vocab_size: int = 256,
        **options: Any,
    ) -> None:
        self.notes: list[str] = options.pop("notes", [])
        self.phases: list[Phase] = []
        self.stop = False
        spawned = local.WORKER is not WORKER
        node = options.pop("node", None) or (None if spawned else kept().of(device()))
        of_workload = {"width": width, "vocab_size": vocab_size, "dtype": dtype,
                       "engine": engine, "world_size": world_size}  # fmt: skip
        self.pool = on_this_machine(
            device(),  # type: ignore[arg-type]
            defaults.workload(**of_workload),
            Limits(
                capacity_bytes=capacity_bytes,
                ceiling=0.8,
                host_capacity_bytes=64 * 2**30,
                host_ceiling=0.9,
            ),
            Wiring(
                logs=logs,
                stop=lambda: self.stop,
                on_phase=lambda phase, steps: self.phases.append(phase),
                note=self.notes.append,
                **options,
            ),
            node,
        )

    def run(self, candidate: Candidate = SMALL, **job: object) -> Result:
        asked = defaults.job(candidate, rule=RULE)
        return self.pool.run(replace(asked, **job), time.monotonic() + 120)  # type: ignore[arg-type]


Make = Callable[..., Started]
"""The type of the fixture `start`."""


def ranks() -> list[psutil.Process]:
    """Living processes that this test started, zombies left out.

    Python's own resource tracker stays from the first test on that shared memory in this process.
    """
    others = {pid for node in Kept.all for pid in servers(node).values()}
    others.add(resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.pid not in others and child.status() != psutil.STATUS_ZOMBIE
    ]
