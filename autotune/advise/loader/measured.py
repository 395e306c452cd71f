"""Measurements of one setting of a loader, in all rounds and by all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.advise.loader.asked import Setting
from autotune.wire.helpers import Loaded, Slice
from autotune.wire.stopping import interval

Round = tuple[Loaded, ...]
"""Measurements of all ranks' loaders, side by side."""
Unit = Literal["batches", "samples", "tokens"]


@dataclass(frozen=True)
class Rate:
    """A rate per second: median and 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class SettingRow:
    """A setting with its rounds, or the reason of its failure."""

    setting: Setting
    rounds: tuple[Round, ...]
    failed: str = ""

    @property
    def has_tokens(self) -> bool:
        return all(part.tokens for part in self._slices(self.rounds))

    @property
    def unit(self) -> Unit:
        """The unit of rates: tokens, or samples without tokens."""
        return "tokens" if self.has_tokens else "samples"

    def rate(self, unit: Unit) -> Rate:
        """The rate of all ranks: training waits for the slowest one."""
        ranks = len(self.rounds[0])
        found = interval([s.wall_s / getattr(s, unit) for s in self._slices(self.rounds)])
        return Rate(ranks / found.median, ranks / found.high, ranks / found.low)

    @property
    def differs(self) -> float:
        """The difference of the rounds' medians, as a share of the larger one."""
        each = [SettingRow(self.setting, (one,)).rate("batches").median for one in self.rounds]
        return 1 - min(each) / max(each)

    @property
    def first_batch_s(self) -> float:
        """Seconds to the first batch of the slowest rank, in the slower round."""
        return max(each.first_batch_s for each in self._all)

    @property
    def shape(self) -> list[int]:
        """(B, T) of a batch, or (B,)."""
        return self.rounds[0][0].shape

    @property
    def loader_bytes(self) -> int:
        return max(each.loader_bytes for each in self._all)

    @property
    def worker_bytes(self) -> int:
        """Memory of the largest worker."""
        return max((size for each in self._all for size in each.worker_bytes), default=0)

    @property
    def shm_bytes(self) -> int:
        """Bytes of all ranks in /dev/shm."""
        return max(sum(each.shm_bytes for each in one) for one in self.rounds)

    @property
    def host_bytes(self) -> int:
        """Memory of all ranks' loaders, with workers and /dev/shm."""
        return max(
            sum(each.loader_bytes + sum(each.worker_bytes) + each.shm_bytes for each in one)
            for one in self.rounds
        )

    @property
    def epochs(self) -> list[int]:
        """Batches of the epochs that ended in a rank's timing."""
        return max((each.epochs for each in self._all), key=len)

    @property
    def left(self) -> bool:
        """Whether all workers exited when told to."""
        return all(each.left for each in self._all)

    @property
    def _all(self) -> list[Loaded]:
        return [each for one in self.rounds for each in one]

    @staticmethod
    def _slices(rounds: tuple[Round, ...]) -> list[Slice]:
        """Slices of the slowest rank of each round."""
        return [part for one in rounds for part in max(one, key=_batch_s).slices]


def _batch_s(found: Loaded) -> float:
    return sum(s.wall_s for s in found.slices) / sum(s.batches for s in found.slices)
