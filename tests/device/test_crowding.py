"""Ranks on cores that other programs use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from autotune.device import crowding
from autotune.device.cpu import CpuDevice
from autotune.device.crowding import Crowding, remark
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.scripted import Scripted
from autotune.result.folder import provenance
from tests.support.records import space

BUSY = "import time; until = time.monotonic() + 20\nwhile time.monotonic() < until: pass"
NOT_OURS = (
    "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
    " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
)


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in crowding._POLICIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A program that uses a core, whose parent has ended."""
    started = [sys.executable, "-c", NOT_OURS, BUSY]
    pid = int(subprocess.run(started, capture_output=True, text=True, check=True).stdout)
    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


def seen(monkeypatch: pytest.MonkeyPatch, *taken: float) -> list[float]:
    """What is looked at, where others take so many of 4 cores each time."""
    looks: list[float] = []

    def look(usable: Sequence[int], seconds: float) -> float:
        assert len(usable) == 4
        looks.append(seconds)
        return taken[len(looks) - 1]

    monkeypatch.setattr(crowding, "_cores_of_others", look)
    monkeypatch.setattr("os.sched_getaffinity", lambda of: {8, 9, 10, 11}, raising=False)
    return looks


@pytest.mark.parametrize(
    ("wanted", "taken", "passive"),
    [
        (4, (0.2,), False),
        (4, (1.0, 0.1), False),  # that was a moment
        (4, (1.0, 1.0), True),
        (2, (1.0,), False),  # there are cores for both
        (2, (3.0, 3.0), True),
    ],
)
def test_threads_sleep_only_where_others_take_cores_for_long(
    wanted: int, taken: tuple[float, ...], passive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = seen(monkeypatch, *taken)
    device = Crowding(wanted)
    assert device.variables() == ({"OMP_WAIT_POLICY": "PASSIVE"} if passive else {})
    assert device.variables() == device.variables()
    assert len(looks) == len(taken)


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = seen(monkeypatch, 4.0, 4.0)
    monkeypatch.setenv(name, "1")
    assert Crowding(4).variables() == {}
    assert looks == []


def test_it_is_said_where_we_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OMP_WAIT_POLICY=PASSIVE" in remark({"OMP_WAIT_POLICY": "PASSIVE"})
    assert remark({}) == ""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert remark({"OMP_WAIT_POLICY": "PASSIVE"}) == ""


def test_a_stranger_that_computes_is_seen(stranger: int) -> None:
    assert crowding._cores_of_others(crowding.usable_cores(), 1.0) > 0.3, stranger


def test_others_are_what_is_busy_and_not_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cores that may be used: 1.5 of them in 0.2 s, of which one is ours."""
    busy, own = [10.0, 10.3], [4.0, 4.2]
    asked: list[Sequence[int]] = []

    def busy_s(usable: Sequence[int]) -> float:
        asked.append(usable)
        return busy[len(asked) - 1]

    monkeypatch.setattr(crowding, "_busy_s", busy_s)
    monkeypatch.setattr(crowding, "_own_s", lambda: own.pop(0))
    clock = iter([1.0, 1.2])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert crowding._cores_of_others([2, 3], 0.0) == pytest.approx(0.5)
    assert asked == [[2, 3]] * 2


def test_only_cores_that_may_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    core = namedtuple("core", ["user", "system", "idle", "iowait", "guest", "steal"])
    each = [core(1.0, 2.0, 50.0, 5.0, 1.0, 9.0), core(100.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: each)
    assert crowding._busy_s([0]) == 3.0
    assert crowding._busy_s([0, 1, 7]) == 103.0


def test_what_this_process_started_is_our_own() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as mine:
        before, until = crowding._own_s(), time.monotonic() + 20.0
        while crowding._own_s() - before <= 0.2:
            assert time.monotonic() < until
            time.sleep(0.1)
        mine.kill()


def test_ranks_and_their_record_have_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, 4.0, 4.0)
    monkeypatch.setattr("autotune.device.cpu.cores", lambda *roots: 4)
    among = space()
    ours = Machine(CpuDevice(), "cpu").variables(among, 1)
    assert ours["OMP_WAIT_POLICY"] == "PASSIVE"
    assert provenance.environment(ours)["variables"]["OMP_WAIT_POLICY"] == "PASSIVE"
    recipe = {"command": "true", "own": {}, "set": {}, "folder": "."}
    scripted = replace(among, workload=replace(among.workload, recipe=recipe))
    assert "OMP_WAIT_POLICY" not in Scripted(CpuDevice(), "cpu").variables(scripted, 1)
