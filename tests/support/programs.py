"""Places of files, and ranks that replace the product's own."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
MEASURED_AGAIN = (None, "its measurements differ")
"""Possible values of `unconfirmed` after finals: on a busy machine they may differ."""
SCRIPTS = ROOT / "scripts"
QUICK_RANK = [sys.executable, "-P", str(TESTS / "support" / "quick_rank.py")]
FAULTY_RANK = [sys.executable, "-P", str(TESTS / "support" / "faulty_rank.py")]


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
