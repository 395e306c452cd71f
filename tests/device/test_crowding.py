"""Ranks on cores that other programs use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from autotune.device import crowding
from autotune.device.crowding import Crowding, remark

BUSY = "import time; until = time.monotonic() + 20\nwhile time.monotonic() < until: pass"
NOT_OURS = (
    "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
    " stdout=subprocess.DEVNULL).pid)"
)


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A program that uses a core, whose parent has ended."""
    started = [sys.executable, "-c", NOT_OURS, BUSY]
    pid = int(subprocess.run(started, capture_output=True, text=True, check=True).stdout)
    yield pid
    os.kill(pid, 9)


def seen(monkeypatch: pytest.MonkeyPatch, *taken: float) -> list[float]:
    """What is looked at, where others take so many cores each time."""
    looks: list[float] = []

    def look(seconds: float) -> float:
        looks.append(seconds)
        return taken[len(looks) - 1]

    monkeypatch.setattr(crowding, "_cores_of_others", look)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
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
    assert crowding._cores_of_others(1.0) > 0.3, stranger


def test_what_this_process_started_is_no_stranger() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as mine:
        before = crowding._own_s()
        time.sleep(2.0)
        assert crowding._own_s() - before > 0.2
        mine.kill()
