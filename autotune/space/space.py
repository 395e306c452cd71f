"""The search space: axes, limits, and valid candidates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from autotune.space.axes import AXES
from autotune.space.candidate import BUILD_AXES, Build, Candidate
from autotune.space.workload import Workload

LEFT_OUT = "left out"
"""The name of a `Fixed` about values that are not searched."""


@dataclass(frozen=True)
class Fixed:
    """A value that the study does not search, and the reason for it."""

    name: str
    value: str
    why: str


Size = Annotated[int, Meta(ge=1, le=2**63 - 1)]


NO_LIMIT = 2**62
"""Bytes of a host whose memory is not checked."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The memory that a configuration may use, per device and on the host."""

    capacity_bytes: Size
    ceiling: float
    host_capacity_bytes: Size
    host_ceiling: float
    rank_capacities: tuple[int, ...] = ()
    """Capacity of each rank's device where they differ: `capacity_bytes` is the least. A peak is
    told as the share of its own device that it fills of the smallest."""

    @property
    def limit_bytes(self) -> int:
        return int(self.capacity_bytes * self.ceiling)

    @property
    def host_limit_bytes(self) -> int:
        return int(self.host_capacity_bytes * self.host_ceiling)


@dataclass(frozen=True, kw_only=True)
class Space:
    """All valid candidates of one study, ascending, and its fixed values."""

    workload: Workload
    limits: Limits
    axes: dict[str, tuple[Any, ...]]
    candidates: tuple[Candidate, ...]
    fixed: tuple[Fixed, ...]

    def asked_for(self, ran: Candidate) -> Candidate | None:
        """The requested candidate for a script's run `ran`, which chose what it was not told."""
        searched = [name for name, values in self.axes.items() if len(values) > 1]
        if not self.workload.of_script:
            return ran if ran in self.candidates else None
        return next(
            (
                c
                for c in self.candidates
                if all(getattr(c, n) == getattr(ran, n) for n in searched)
            ),
            None,
        )

    def name(self, candidate: Candidate) -> str:
        """The name of `candidate` to show: its key; for a script, the values that it is told."""
        if not self.workload.of_script:
            return candidate.key
        told = [name for name, values in self.axes.items() if len(values) > 1]
        return ", ".join(f"{name} {getattr(candidate, name)}" for name in told or ["micro_batch"])

    @property
    def by_rank(self) -> bool:
        """Whether ranks have micro-batches of their own, so none stands for the others."""
        return "micro_batch_per_rank" in self.axes

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        return tuple(sorted({c.build for c in self.candidates}))

    @cached_property
    def opening(self) -> tuple[Build, ...]:
        """The middle build, and those that differ in one axis, or in stage and offload."""
        depths = sorted({b.depth for b in self.builds})
        stages = sorted({(b.zero_stage, b.offload) for b in self.builds})
        zero_stage, offload = stages[0]
        words = {
            name: sorted({getattr(b, name) for b in self.builds}, key=AXES[name].order)
            for name in BUILD_AXES if name not in ("depth", "zero_stage", "offload")
        }  # fmt: skip
        middle = Build(
            depth=depths[len(depths) // 2], zero_stage=zero_stage, offload=offload,
            **{name: values[0] for name, values in words.items()},
        )  # fmt: skip
        spokes = (
            [middle]
            + [replace(middle, depth=depth) for depth in depths]
            + [replace(middle, zero_stage=stage, offload=moved) for stage, moved in stages]
            + [replace(middle, **{name: value})
               for name, values in words.items() for value in values]
        )  # fmt: skip
        known = set(self.builds)
        return tuple(dict.fromkeys(build for build in spokes if build in known))

    def manifest(self) -> dict[str, Any]:
        """The space as JSON types, for the study folder."""
        workload = asdict(self.workload)
        batch = self.workload.global_batch
        workload["global_batch"] = None if batch is None else str(batch)
        for name in ("recipe", "shapes", "length_mix"):
            if not workload[name]:
                del workload[name]
        if workload["nodes"] == 1:
            del workload["nodes"]
        limits = asdict(self.limits) | {"rank_capacities": list(self.limits.rank_capacities)}
        if not self.limits.rank_capacities:
            del limits["rank_capacities"]
        return {"workload": workload, "limits": limits,
                "axes": {name: list(values) for name, values in self.axes.items()},
                "size": len(self.candidates)}  # fmt: skip
