"""Cores that a rank keeps to, where several groups share a machine."""

from __future__ import annotations

import os

CORES = "AUTOTUNE_CORES"
"""The variable that has their numbers."""


def keep_to_cores() -> None:
    """Have this process, which has one thread yet, run on the cores that the variable names."""
    if numbers := os.environ.get(CORES):
        os.sched_setaffinity(0, map(int, numbers.split(",")))
