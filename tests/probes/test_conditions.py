"""What is taken for heat, and what others take."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from autotune.space.outcome import others_share
from autotune.wire.cores import CpuTimes, surely_s
from autotune.wire.emulated import VARIABLE
from probes.conditions import Watch


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_what_others_take_does_not_count_what_this_process_does() -> None:
    watch = Watch(None)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy(0.4)
        alone, as_two = watch.others_share(1), watch.others_share(2)
    finally:
        other.kill()
        other.wait()
    assert 0.0 < alone <= 1.0
    # With a second rank that does as much as this one, less of it is others'.
    assert as_two < alone


def test_nobody_takes_the_time_of_an_emulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a file")
    watch = Watch(None)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy(0.4)
        assert others_share(watch.conditions()) == watch.others_share(1) == 0.0
    finally:
        other.kill()
        other.wait()


def test_a_moment_is_too_short_to_blame_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts in ticks of 10 ms: a whole one may be in a step of 1 ms."""
    times = iter(
        [
            CpuTimes(wall_s=0.0, busy_s=5.0, steal_s=0.0, own_s=1.0),
            CpuTimes(wall_s=0.005, busy_s=5.01, steal_s=0.01, own_s=1.004),
            CpuTimes(wall_s=0.005, busy_s=5.01, steal_s=0.01, own_s=1.004),
        ]
    )
    monkeypatch.setattr(Watch, "_cpu_times", lambda self: next(times))
    watch = Watch(None)
    assert watch.others_share(1) == 0.0
    assert others_share(watch.conditions()) == 0.0


@pytest.mark.parametrize(
    ("counted_s", "cores", "sure_s"), [(3.0, 4, 2.98), (0.01, 2, 0.0), (0.4, 64, 0.32)]
)
def test_counters_are_unsure_by_a_tick_a_core(counted_s: float, cores: int, sure_s: float) -> None:
    assert surely_s(counted_s, cores) == pytest.approx(sure_s)
