"""Cores that a rank keeps to, where several groups share a machine, and what their use is."""

from __future__ import annotations

import math
import os

CORES = "AUTOTUNE_CORES"
"""The variable that has their numbers."""


def surely_s(counted_s: float, cores: int) -> float:
    """What is certain of the seconds that the kernel counted on so many cores. It counts ticks
    (proc(5), /proc/stat): each core is off by up to one, and they are so independently."""
    return max(0.0, counted_s - math.sqrt(cores) / os.sysconf("SC_CLK_TCK"))


def keep_to_cores() -> None:
    """Have this process, which has one thread yet, run on the cores that the variable names."""
    if numbers := os.environ.get(CORES):
        os.sched_setaffinity(0, map(int, numbers.split(",")))
