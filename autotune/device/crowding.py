"""Other programs on the cores that ranks on the CPU compute with.

The threads of an operation wait for each other at its end, and spin while they do, which is the
fastest where each has a core. Where another program takes one of them, what spins keeps the thread
that is waited for from running: a step of a small model took 12 times as long beside one busy
program on two cores, and 2 times as long where waiting threads sleep (results/disturbed.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

_POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Whoever sets one of them has decided how threads wait."""
_LOOKS_S = (0.1, 0.4)
"""Others have to be busy in each of these, one after the other: a moment says little."""
_CROWDED = 0.5
"""So many cores, of those that ranks want, are not just what a system does beside."""


class Crowding:
    """Of the cores that this process may run on, of which ranks want some; found out once, when
    first asked for. What others of a cgroup's quota take does not show."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._taken: float | None = None

    def variables(self) -> dict[str, str]:
        """Of ranks: how their threads wait, where the user has not said so."""
        if any(name in os.environ for name in _POLICIES):
            return {}
        if self._taken is None:
            usable = usable_cores()
            spare = max(0, len(usable) - self._wanted)
            for look_s in _LOOKS_S:
                self._taken = max(0.0, _cores_of_others(usable, look_s) - spare)
                if self._taken < _CROWDED:
                    break
        assert self._taken is not None
        return {"OMP_WAIT_POLICY": "PASSIVE"} if self._taken >= _CROWDED else {}


def remark(variables: Mapping[str, str]) -> str:
    """What to say where ranks have these `variables`; empty where nothing is to be said."""
    if variables.get("OMP_WAIT_POLICY") != "PASSIVE" or "OMP_WAIT_POLICY" in os.environ:
        return ""
    return (
        "other programs use the cores: threads of ranks sleep while they wait for each other"
        " (OMP_WAIT_POLICY=PASSIVE), and what is measured is slower than on an idle machine"
    )


def usable_cores() -> Sequence[int]:
    """Cores that this process may run on, by their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(psutil.cpu_count() or 1)


def _cores_of_others(usable: Sequence[int], seconds: float) -> float:
    """Of those cores, how many other processes than this one and those it started keep busy, over
    so many seconds."""
    own_s, began, busy_s = _own_s(), time.monotonic(), _busy_s(usable)
    time.sleep(seconds)
    busy_s, took_s = _busy_s(usable) - busy_s, time.monotonic() - began
    return max(0.0, (busy_s - (_own_s() - own_s)) / took_s)


def _busy_s(usable: Sequence[int]) -> float:
    """Of these cores, since the machine began."""
    cores = psutil.cpu_times(percpu=True)
    # The first two are in user's and nice's times as well; stolen time is nobody's here.
    besides = ("guest", "guest_nice", "idle", "iowait", "steal")
    return float(
        sum(
            spent_s
            for number in usable
            if number < len(cores)
            for name, spent_s in cores[number]._asdict().items()
            if name not in besides
        )
    )


def _own_s() -> float:
    """Of this process and its descendants; on Linux also of those that ended."""
    own_s = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            own_s += sum(process.cpu_times()[:4])
    return own_s
