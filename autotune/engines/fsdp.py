"""torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

from autotune.engines.engine import Engine


class Fsdp(Engine):
    """fp32 weights in every dtype, cast for the products.

    Stage 3 gives parameters back after the forward pass, stage 2 keeps them.
    """

    name = "fsdp"
    stages = (2, 3)
