"""The search finds the ratio of micro-batches that suits cards whose speeds nobody told it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device.device import Device
from autotune.measure.runner import Job, Result
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from tests.support.scripted import ok
from tests.support.studies import Run

GIB = 2**30
NAMES = ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090")
A_SAMPLE = 100 * 2**20


@pytest.mark.parametrize("faster", [1.0, 1.45, 1.9])
def test_unlike_cards_get_what_their_real_speeds_call_for(
    faster: float, gpus: Device, tmp_path: Path
) -> None:
    """Data sheets say 2.3."""
    gpus.infos = tuple(
        replace(info, name=name, capacity_bytes=24 * GIB)
        for info, name in zip(gpus.infos, NAMES, strict=True)
    )
    texts = {"world_size": "2", "micro_batch_per_rank": "auto", "depth": "12", "seq_len": "1024"}
    asked = Options.from_texts(texts | {"checkpointing": "none"})
    space = resolve(asked, gpus, 64 * GIB, 2)
    limit = space.limits.limit_bytes

    def seconds(vector: tuple[int, ...]) -> float:
        slow, fast = vector
        return 0.02 + 0.05 * max(slow, fast / faster)

    def answer(job: Job) -> Result:
        peak = 4 * GIB + max(job.candidate.vector) * A_SAMPLE
        if peak > limit * 1.2:
            return Result(verdict=Verdict.OOM)
        return ok(seconds(job.candidate.vector), peak)

    done = Run(tmp_path / "study", answer, space, sampler="frontier")
    most = (limit - 4 * GIB) // A_SAMPLE
    every = [(a, b) for a in range(1, most + 1) for b in range(1, most + 1)]
    ideal = max(sum(vector) / seconds(vector) for vector in every)
    found = done.choice.record.candidate.vector
    assert sum(found) / seconds(found) > 0.96 * ideal
    assert len(done.runner.searched) < 60
