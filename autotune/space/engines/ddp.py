"""torch's DistributedDataParallel."""

from __future__ import annotations

from autotune.space.engines.engine import EngineFacts


class Ddp(EngineFacts):
    """fp32 weights in every dtype, under autocast, unless they are to be bf16 alone; each rank
    holds all."""

    name = "ddp"
    stages = (0,)
