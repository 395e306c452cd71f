"""How long a storage that does not answer is waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.wire.budget import Clock, StopFlag

LOOK_S = 0.1
LONGEST_S = 2.0
"""Between two tries; the first ones come sooner."""


GRACE_S = 10.0
"""A server that starts again is back by then."""


@dataclass
class Patience:
    """Of a study: until its budget has ended, or its user has stopped it, for `GRACE_S`."""

    clock: Clock
    stop: StopFlag
    note: Callable[[str], None]
    _until: float = math.inf
    """Of `time.monotonic`."""

    def pause(self, tries: int) -> bool:
        """Wait for the next of so many tries; False where there is to be none."""
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
