"""torch's DistributedDataParallel."""

from __future__ import annotations

from autotune.space.engines.engine import EngineFacts


class Ddp(EngineFacts):
    """fp32 weights under autocast, or bf16 ones if asked for. Each rank holds all."""

    name = "ddp"
    unused = (0.06, 0.28)
    stages = (0,)
    axes = ("float8",)
