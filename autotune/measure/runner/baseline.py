"""Waiting until what processes held of a device is back after their end."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.measure.runner.group import POLL_S

SLACK_BYTES = 64 * 2**20
MOST_S = 20.0
FLAT_S = 0.5
"""Device memory that does not change for so long is not on its way back any more."""


def left_bytes(
    over_bytes: Callable[[], int], until: float = float("inf"), flat_s: float = FLAT_S
) -> int:
    """What is in use over the baseline, by `over_bytes`, when no more of it comes back, or at
    `until`; at most `SLACK_BYTES` where all is back."""
    began = changed = time.monotonic()
    last = over_bytes()
    while last > SLACK_BYTES:
        now = time.monotonic()
        if now > min(until, began + MOST_S) or now - changed > flat_s:
            return last
        time.sleep(POLL_S)
        over = over_bytes()
        if over != last:
            last, changed = over, time.monotonic()
    return last
