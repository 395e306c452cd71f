"""One point of the space, and the part of it that needs a new engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from autotune.space.axes import (
    ASKED_AXES,
    AXES,
    MEMORY_AXES,
    OTHER_AXES,
    PADDING_AXES,
    SAME,
    ByRank,
    Shape,
)
from autotune.wire.settings import Depth, Settings, rows


@dataclass(frozen=True, order=True, kw_only=True)
class Build(Settings, Depth):
    """The part of a candidate that needs a new engine, and so new processes."""


BUILD_AXES = tuple(rows(Build))
_build_of, _memory_of, _others_of = (
    attrgetter(*names)
    for names in (
        BUILD_AXES,
        MEMORY_AXES,
        [n for n in OTHER_AXES if n not in (*PADDING_AXES, "micro_batch_per_rank")],
    )
)


@dataclass(frozen=True, order=True, kw_only=True)
class Candidate(ByRank, Settings, Shape):
    """One point of the space: a value on each of `AXES`."""

    @cached_property
    def build(self) -> Build:
        return Build(**dict(zip(BUILD_AXES, _build_of(self), strict=True)))

    @property
    def cell(self) -> tuple[int, int]:
        return (self.depth, self.seq_len)

    @property
    def tokens(self) -> int:
        """Tokens per rank and micro-step; activation memory grows with them."""
        return self.micro_batch * self.seq_len

    @property
    def vector(self) -> tuple[int, ...]:
        """Samples of a micro-step by rank; empty if all ranks have `micro_batch`."""
        if self.micro_batch_per_rank == SAME:
            return ()
        return tuple(map(int, self.micro_batch_per_rank.split("+")))

    def samples_of(self, replicas: int) -> int:
        """Samples of a micro-step of all `replicas`."""
        return sum(self.vector) or self.micro_batch * replicas

    @property
    def key(self) -> str:
        """Canonical name, e.g. `d4-s256-b8-z0-none-none`, with other values that are not plain."""
        first = (
            f"d{self.depth}-s{self.seq_len}-b{self.micro_batch}"
            f"-z{self.zero_stage}-{self.offload}-{self.checkpointing}"
        )
        asked = {name: getattr(self, name) for name in ASKED_AXES}
        return first + "".join(
            f"-{name}={value}" for name, value in asked.items() if value != AXES[name].plain
        )

    @property
    def exists(self) -> bool:
        """Whether stage and offload go together: 0 offloads nothing, only 3 offloads weights."""
        least_stage = {"none": 0, "optimizer": 1, "all": 3}
        return self.zero_stage >= least_stage[self.offload]

    @property
    def sharing(self) -> tuple[object, ...]:
        """The values that tell a script how its ranks share data."""
        return (self.tp, self.pp, self.cp, self.ep, self.own)

    def covers(self, other: Candidate) -> bool:
        """Whether this needs at least the memory of `other`. It is no smaller on `MEMORY_AXES` and
        on any rank, and equal on all others but the padding."""
        mine, its = self.vector, other.vector
        return (
            _others_of(self) == _others_of(other)
            and len(mine) == len(its)
            and all(
                a >= b
                for a, b in zip(
                    (*_memory_of(self), *mine), (*_memory_of(other), *its), strict=True
                )
            )
        )
