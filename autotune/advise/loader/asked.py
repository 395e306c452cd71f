"""A request to measure a loader: its settings, and the rate that training needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.result.best import Best

MARGIN = 1.1
"""A loader is no bottleneck from this multiple of the needed rate on."""


@dataclass(frozen=True, order=True)
class Setting:
    """Arguments of a DataLoader. A smaller one uses less of the host."""

    workers: int
    prefetch: int | None
    """Batches that each worker loads ahead; None without workers."""
    pin_memory: bool

    def __str__(self) -> str:
        ahead = "" if self.prefetch is None else f", prefetch_factor {self.prefetch}"
        return f"num_workers {self.workers}{ahead}{', pin_memory' if self.pin_memory else ''}"


@dataclass(frozen=True)
class Need:
    """The highest rate at which all ranks of this host consume data."""

    tokens_per_s: float
    samples_per_s: float | None

    @classmethod
    def of(cls, best: Best) -> Need:
        share = best.config.ranks_on_a_node / best.config.world_size
        return cls(share * best.measured.tokens_per_s, share * best.measured.samples_per_s)


@dataclass(frozen=True, kw_only=True)
class LoaderProbe:
    module: str
    function: str
    folder: str
    settings: tuple[Setting, ...]
    """Ascending."""
    ranks: int
    micro_batch: int | None
    seq_len: int | None
    need: Need | None
    training_bytes: int
    """Host memory of training itself."""
    limit_bytes: int
    """Host memory for training and loaders."""
    budget_s: float

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"


def settings(
    workers: Sequence[int], prefetch: Sequence[int], pins: Sequence[bool]
) -> tuple[Setting, ...]:
    """All combinations. Without workers there is no prefetching."""
    found = {
        Setting(count, ahead if count else None, pin)
        for count in workers
        for ahead in prefetch
        for pin in pins
    }
    return tuple(sorted(found))


def worker_counts(cores: int, ranks: int) -> tuple[int, ...]:
    """0 and the powers of two up to the cores that each of `ranks` may use."""
    most = max(1, cores // ranks)
    return (0, *(2**power for power in range(most.bit_length())))
