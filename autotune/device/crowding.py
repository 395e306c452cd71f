"""Other programs on the cores of ranks on the CPU.

At the end of an operation threads wait for each other and spin: the fastest way if each has a
core. If another program takes a core, spinning threads keep the last one from running. Beside one
busy program on two cores, a step of a small model took 12 times as long. With sleeping threads it
took 2 times as long (results/disturbed.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

_POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""With one of these variables the user decides how threads wait."""
_LOOKS_S = (0.1, 0.4)
"""Others have to be busy in each of these intervals, one after the other."""
_CROWDED = 0.5
"""Others that keep so many of the ranks' cores busy are more than the system itself."""


class Crowding:
    """Whether others use our cores; looked at once. Others within a cgroup's quota do not show."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._taken: float | None = None

    def variables(self) -> dict[str, str]:
        """Variables of ranks for how their threads wait, unless the user set one."""
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
    """A note on these `variables` of ranks; empty without a need for one."""
    if variables.get("OMP_WAIT_POLICY") != "PASSIVE" or "OMP_WAIT_POLICY" in os.environ:
        return ""
    return (
        "other programs use the cores: waiting threads of ranks sleep (OMP_WAIT_POLICY=PASSIVE),"
        " and measurements are slower than on an idle machine"
    )


def usable_cores() -> Sequence[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(psutil.cpu_count() or 1)


def _cores_of_others(usable: Sequence[int], seconds: float) -> float:
    """How many of those cores other programs keep busy, over so many seconds."""
    own_s, began, busy_s = _own_s(), time.monotonic(), _busy_s(usable)
    time.sleep(seconds)
    busy_s, took_s = _busy_s(usable) - busy_s, time.monotonic() - began
    return max(0.0, (busy_s - (_own_s() - own_s)) / took_s)


def _busy_s(usable: Sequence[int]) -> float:
    """Busy seconds of these cores since the machine began."""
    cores = psutil.cpu_times(percpu=True)
    # The first two are also in user's and nice's times; stolen time belongs to other machines.
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
    """Processor seconds of this process and its descendants; on Linux ended ones included."""
    own_s = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            own_s += sum(process.cpu_times()[:4])
    return own_s
