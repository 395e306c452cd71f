"""The time to wait for a storage that does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.wire.budget import Clock, StopFlag

LOOK_S = 0.1
LONGEST_S = 2.0
"""The longest pause between two tries; the first pauses are shorter."""


GRACE_S = 10.0
"""Seconds in which a server can start again."""


@dataclass
class Patience:
    """Waits until the budget has ended or the user has stopped the study, and `GRACE_S` longer."""

    clock: Clock
    stop: StopFlag
    note: Callable[[str], None]
    _until: float = math.inf
    """A reading of `time.monotonic`."""

    def pause(self, tries: int) -> bool:
        """Wait before the next try; False if there is none."""
        left_s = min(LONGEST_S, LOOK_S * 2**tries)
        while left_s > 0 and not self.ended:
            time.sleep(LOOK_S)
            left_s -= LOOK_S
        return not self.ended

    @property
    def ended(self) -> bool:
        if self._until == math.inf and (self.stop or self.clock.remaining_s() <= 0):
            self._until = time.monotonic() + GRACE_S
        return time.monotonic() > self._until
