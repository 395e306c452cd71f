"""One point of the space, and the part of it that needs a new engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Offload = Literal["none", "optimizer", "all"]
Checkpointing = Literal["none", "full"]

ZERO_STAGES = (0, 1, 2, 3)
AXES = ("depth", "seq_len", "micro_batch", "zero_stage", "offload", "checkpointing")


@dataclass(frozen=True, order=True)
class Build:
    """The part of a candidate that needs a new engine."""

    depth: int
    zero_stage: int
    offload: str
    checkpointing: str


@dataclass(frozen=True, order=True, kw_only=True)
class Candidate:
    """One point of the space. `micro_batch` counts samples per rank and micro-step."""

    depth: int
    seq_len: int
    micro_batch: int
    zero_stage: int = 0
    offload: str = "none"
    checkpointing: str = "none"

    @property
    def build(self) -> Build:
        return Build(self.depth, self.zero_stage, self.offload, self.checkpointing)

    @property
    def cell(self) -> tuple[int, int]:
        return (self.depth, self.seq_len)

    @property
    def tokens(self) -> int:
        """Tokens per rank and micro-step: what activation memory grows with."""
        return self.micro_batch * self.seq_len

    @property
    def key(self) -> str:
        """Canonical name, e.g. `d4-s256-b8-z0-none-none`."""
        return (
            f"d{self.depth}-s{self.seq_len}-b{self.micro_batch}"
            f"-z{self.zero_stage}-{self.offload}-{self.checkpointing}"
        )

    @property
    def exists(self) -> bool:
        """Whether stage and offload go together: stage 0 keeps all, only 3 offloads weights."""
        least_stage = {"none": 0, "optimizer": 1, "all": 3}
        return self.zero_stage >= least_stage[self.offload]

    def covers(self, other: Candidate) -> bool:
        """Whether this needs at least the memory of `other`: it is smaller in no axis, and
        stage, offload and checkpointing are the same."""
        return (
            (self.zero_stage, self.offload, self.checkpointing)
            == (other.zero_stage, other.offload, other.checkpointing)
            and self.depth >= other.depth
            and self.seq_len >= other.seq_len
            and self.micro_batch >= other.micro_batch
        )
