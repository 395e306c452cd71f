"""Limits: the time of a study, the memory of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.options.flag import option
from autotune.units import parse_bytes, parse_duration_s, parse_share


def _read_capacity(text: str, flag: str) -> int | tuple[int, ...]:
    """Bytes of each device, or of each rank's."""
    first, *others = (parse_bytes(part, flag) for part in text.split(","))
    return (first, *others) if others else first


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    # fmt: off
    budget_s: float = option(
        "--budget", parse_duration_s, "TIME",
        "Wall-clock time for everything, from start to the written best.json: 90s, 30m or"
        " 1.5h (default: 30m; of a resumed study what is left of it). With --resume it is"
        " added to what was spent.", silently="30m")
    ceiling: float = option(
        "--ceiling", parse_share, "SHARE",
        "Largest share of a device's memory that a configuration may use.", default="80%")
    host_ceiling: float = option(
        "--host-ceiling", parse_share, "SHARE",
        "Largest share of the host's memory that all ranks together may use.",
        default="90%")
    capacity_bytes: int | tuple[int, ...] | None = option(
        "--capacity", _read_capacity, "SIZE",
        "Pretend that each device has only this much memory, e.g. 24GiB; with"
        " --micro-batch-per-rank also by rank, as 24GiB,48GiB (default: the memory of"
        " the smallest device; on cpu that of the host, divided by the ranks).")
    # fmt: on

    @property
    def least_capacity_bytes(self) -> int | None:
        """The requested capacity of the smallest device."""
        asked = self.capacity_bytes
        return min(asked) if isinstance(asked, tuple) else asked
