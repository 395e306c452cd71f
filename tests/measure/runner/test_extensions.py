"""Locks of builds that were killed: no later rank waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.measure.runner import extensions, local, node
from autotune.wire.agents import Task
from autotune.wire.dial import Dial
from tests.support.pools import Cpu


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {extensions.VARIABLE: str(tmp_path)}


def lock(folder: Path, *, age_s: float = 0.0) -> Path:
    path = folder / "py311_cpu" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def test_the_lock_of_a_dead_builder_is_removed(environ: dict[str, str], tmp_path: Path) -> None:
    builder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    extensions.note_builder(environ, builder.pid)
    left = lock(tmp_path)
    extensions.remove_stale_locks(environ)
    assert left.exists()  # it builds
    builder.kill()
    builder.wait()
    extensions.remove_stale_locks(environ)
    assert not left.exists()


def test_a_lock_older_than_any_build_is_removed(environ: dict[str, str], tmp_path: Path) -> None:
    old = lock(tmp_path, age_s=extensions.STALE_S + 1)
    extensions.remove_stale_locks(environ)
    assert not old.exists()
    new = lock(tmp_path)  # somebody else's, of whom nothing is known
    extensions.remove_stale_locks(environ)
    assert new.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_only_a_build_that_failed_left_something(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", f"raise SystemExit({fails})"])
    process = node._load(["CPUAdamBuilder"], tmp_path / "ops-0.log", environ)
    there = lock(tmp_path)  # it may be another program's
    process.reap()
    assert there.exists() is not fails


def test_leftovers_of_a_killed_build_are_removed(environ: dict[str, str], tmp_path: Path) -> None:
    other = lock(tmp_path, age_s=100)
    extensions.remove_locks(environ, since=time.time() - 50)
    assert other.exists()
    extensions.remove_locks(environ, since=time.time() - 150)
    assert not other.exists()


HOLDS = """
import os, sys
folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "cpu_adam")
os.makedirs(folder, exist_ok=True)
os.open(os.path.join(folder, sys.argv[1]), os.O_CREAT | os.O_EXCL)
print("held", flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), 9)
"""
"""As torch's FileBaton, in the place of a rank that loads an op and is killed."""


def test_a_rank_that_is_killed_while_it_loads_an_op_leaves_no_lock(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", HOLDS, "lock"])
    here = node.LocalNode(Cpu(), tmp_path, {}, print, works=False)  # type: ignore[arg-type]
    dial = Dial(host="", port=0, key="", rank=0, child=True)
    rank = here.start(Task(program="rank", environment=environ), dial, tmp_path / "a.log")
    rank.reap()
    assert rank.exit_code() == -signal.SIGKILL
    assert (tmp_path / "a.log").read_text() == "held\n"
    assert not (tmp_path / "cpu_adam" / "lock").exists()


def test_a_lock_that_a_live_process_holds_is_not_removed(
    environ: dict[str, str], tmp_path: Path
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, "lock"], env=os.environ | environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    extensions.remove_locks(environ, since=0.0)
    assert (tmp_path / "cpu_adam" / "lock").exists()
    other.communicate("\n")
    extensions.remove_locks(environ, since=0.0)
    assert not (tmp_path / "cpu_adam" / "lock").exists()
