"""torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

from autotune.engines.engine import Engine
from autotune.space.candidate import Build, Candidate


class Fsdp(Engine):
    """fp32 weights in every dtype, cast for the products, unless they are to be bf16 alone.

    Stage 3 gives parameters back after the forward pass, stage 2 keeps them.
    """

    name = "fsdp"
    stages = (2, 3)

    def reduces_in(self, dtype: str, of: Candidate | Build) -> str:
        return "fp32"
