"""Places of files, programs that run to their end, and ranks that replace the product's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
MEASURED_AGAIN = (None, "its measurements differ")
"""Possible values of `unconfirmed` after finals: on a busy machine they may differ."""
SCRIPTS = ROOT / "scripts"
QUICK_RANK = [sys.executable, "-P", str(TESTS / "support" / "quick_rank.py")]
FAULTY_RANK = [sys.executable, "-P", str(TESTS / "support" / "faulty_rank.py")]


def python(
    *words: object,
    code: int | None = 0,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """A process of this Python that finds the repository, and has to end with a `code`."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}), timeout=timeout,
    )  # fmt: skip
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def autotune(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "autotune", *words, **how)


def stopped(
    *words: object,
    when: Callable[[], bool],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Exit code and output of a command of autotune that is interrupted as soon as `when` holds:
    what comes later takes long and shows nothing more."""
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *map(str, words)], cwd=cwd, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as study:  # fmt: skip
        while study.poll() is None and not when():
            time.sleep(0.1)
        study.send_signal(signal.SIGINT)
        said, _ = study.communicate()
    return study.returncode, said


def ranks_of(pid: int) -> list[psutil.Process]:
    """Processes below `pid` that write to a rank's log: no helpers, nor e.g. uname."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if _log(child).startswith("group")]


def _log(process: psutil.Process) -> str:
    """Name of the file that is its stdout; none of a process that has ended."""
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink().name
    except OSError:
        return ""
