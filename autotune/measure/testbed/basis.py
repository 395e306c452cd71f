"""A space from options, for a model, a script or a recording."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import UsageError
from autotune.measure.testbed.candidates import points_of, valid
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.space import Fixed, Limits, Space
from autotune.space.workload import Workload
from autotune.units import gib


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The parts of a space."""

    workload: Workload
    limits: Limits
    capacity_why: str
    axes: dict[str, tuple[Any, ...]]
    points: Collection[Candidate] | None = None
    """The candidates; None for every combination of the axes."""
    device_kind: str | None = None
    """The device kind if our engines run the candidates; else None."""
    facts: list[Fixed]
    """Settings that all candidates share."""
    more: list[Fixed] = field(default_factory=list)
    """Facts that are shown after the limits."""
    whys: Mapping[str, str | None] = field(default_factory=dict)
    """Why an axis has only one value; None to say nothing."""

    @property
    def _capacity(self) -> str:
        if by_rank := self.limits.rank_capacities:
            return f"{' + '.join(map(gib, by_rank))} by rank"
        return f"{gib(self.limits.capacity_bytes)} a rank"

    def space(self, options: Options) -> Space:
        """The space that `options` mean. Raises `UsageError` if it has no candidate."""
        points = points_of(self.axes) if self.points is None else self.points
        candidates, left_out = valid(points, options, self.workload, self.device_kind)
        whys = {name: self.whys.get(name, "the only value") for name in self.axes}
        return Space(
            workload=self.workload,
            limits=self.limits,
            axes=self.axes,
            candidates=tuple(sorted(candidates)),
            fixed=(
                *self.facts,
                Fixed("capacity", self._capacity, self.capacity_why),
                Fixed("ceiling", f"{self.limits.ceiling:.0%}", "--ceiling"),
                *self.more,
                *left_out,
                *(
                    Fixed("axis" if name == "own" else name, str(values[0]), why)
                    for name, values in self.axes.items()
                    if len(values) == 1 and (why := whys[name]) is not None
                ),
            ),
        )


def limits_of(
    options: Options, own_bytes: int, own_why: str, host_bytes: int, who: str = "the device has"
) -> tuple[Limits, str]:
    """The limits of a configuration with `own_bytes` a rank, and the source of the capacity.
    Raises UsageError if the options ask for more."""
    asked = options.limits.least_capacity_bytes
    if asked is not None and asked > own_bytes:
        raise UsageError(
            f"--capacity {gib(asked)}: {who} {gib(own_bytes)} a rank; use --capacity"
            f" {own_bytes // 2**20}MiB or less"
        )
    limits = Limits(
        capacity_bytes=asked or own_bytes,
        ceiling=options.limits.ceiling,
        host_capacity_bytes=host_bytes,
        host_ceiling=options.limits.host_ceiling,
    )
    return limits, own_why if asked is None else "--capacity"
