"""Energy of an interval by counters, for study and ranks.

The energy of each device is counted once. A rank's `Report` names the GPU or host that its joules
cover, and `merge` adds up different ones. If one is not known, the sum is not. Ranks read the
counters that `Device.energy` names, or none. Source of RAPL's, Intel's and AMD's: the kernel's
Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.wire import reports

UPDATES = 10
"""An interval needs so many updates of its counters: its energy is then known to 10 %."""
# Yang et al., Part-time Power Measurements (2024): A100 and H100. RAPL: Intel's manual, volume 3.
NVML_UPDATE_S = 0.1
_RAPL_UPDATE_S = 0.001


@dataclass(frozen=True, kw_only=True)
class Counter:
    """Counts energy since some moment."""

    read: Callable[[], int]
    joules: float
    range: int
    """The count at which it begins anew."""


@dataclass(frozen=True)
class Counters:
    """All counters of the device that `covers` names: ranks that share it count it once."""

    covers: str = ""
    counters: tuple[Counter, ...] = ()
    update_s: float = 0.0
    errors: tuple[type[Exception], ...] = (OSError, ValueError)


NOTHING = Counters()


def of_host(powercap: Path) -> Counters:
    """RAPL's counters of whole packages, for all their users; they include other domains.

    Raises:
        OSError: a counter cannot be read.
        ValueError: it is no number.
    """
    found = []
    for domain in sorted(powercap.glob("intel-rapl:*")):
        if (domain / "name").read_text().startswith("package"):
            counter = Counter(
                read=partial(_number, domain / "energy_uj"),
                joules=1e-6,
                range=_number(domain / "max_energy_range_uj"),
            )
            counter.read()
            found.append(counter)
    return Counters(socket.gethostname(), tuple(found), _RAPL_UPDATE_S)


def _number(file: Path) -> int:
    return int(file.read_text())


def of_board(uuid: str, read: Callable[[], int], error: type[Exception]) -> Counters:
    """NVML's counter of a GPU. `read` returns mJ or raises `error`."""
    board = Counter(read=read, joules=1e-3, range=2**64)
    return Counters(uuid, (board,), NVML_UPDATE_S, (error,))


class EnergyMeter:
    """Energy of a device until the last `sample`, called before a counter begins anew."""

    def __init__(self, of: Counters) -> None:
        self._of = of
        self._joules = 0.0
        self._last = self._read()
        self._began = self._ended = time.monotonic()

    def sample(self) -> None:
        now, before = self._read(), self._last
        if before is not None and now is not None:
            self._joules += sum(
                (new - old) % counter.range * counter.joules
                for counter, new, old in zip(self._of.counters, now, before, strict=True)
            )
        self._last = None if before is None else now
        self._ended = time.monotonic()

    def used(self, of_s: float | None = None) -> reports.Energy | None:
        """The energy, or that of `of_s` seconds at the mean power: time between steps does not
        count. None without a counter, after a failure, or with too few updates."""
        known, took_s = self._last and self._joules, self._ended - self._began
        if not known or took_s < UPDATES * self._of.update_s:
            return None
        share = 1.0 if of_s is None else of_s / took_s
        return reports.Energy(share * self._joules, self._of.covers)

    def _read(self) -> list[int] | None:
        try:
            return [counter.read() for counter in self._of.counters]
        except self._of.errors:
            return None
