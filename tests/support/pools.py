"""Worker groups without a study: a pool, and what it said on the way."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from autotune.device import DeviceInfo
from autotune.runner import Job, Result
from autotune.runner.pool import Pool
from autotune.space.space import Candidate, Limits, Workload
from autotune.wire.messages import Phase, Rule

MIB = 2**20
SMALL = Candidate(depth=1, seq_len=32, micro_batch=1)
RULE = Rule(3, 0.5, 0.1, 5, 0.02, 0.1)


class Cpu:
    """The CPU, without what the machine's own limits would add."""

    kind = "cpu"
    infos = (DeviceInfo(0, "cpu", "a processor", 16 * 2**30, False),)

    def in_use_bytes(self) -> tuple[int, ...]:
        return (0,)

    def rank_environment(self, world_size: int) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


class Started:
    """A pool, and what it said on the way."""

    def __init__(
        self,
        logs: Path,
        *,
        world_size: int = 1,
        capacity_bytes: int = 4 * 2**30,
        engine: str = "auto",
        dtype: str = "fp32",
        width: int = 64,
        **options: Any,
    ) -> None:
        self.notes: list[str] = []
        self.phases: list[Phase] = []
        self.stop = False
        self.pool = Pool(
            device=Cpu(),  # type: ignore[arg-type]
            workload=Workload("gpt", width, 256, dtype, "adamw", engine, world_size, None),
            limits=Limits(capacity_bytes, 0.8, 64 * 2**30, 0.9),
            logs=logs,
            seed=0,
            stop=lambda: self.stop,
            on_phase=lambda phase, steps: self.phases.append(phase),
            note=self.notes.append,
            **options,
        )

    def run(self, candidate: Candidate = SMALL, **job: object) -> Result:
        asked = Job(candidate, 1, 1, RULE, None, fresh=False)
        return self.pool.run(replace(asked, **job), time.monotonic() + 120)  # type: ignore[arg-type]


def ranks() -> list[psutil.Process]:
    """Living processes that this test started, zombies left out."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]
