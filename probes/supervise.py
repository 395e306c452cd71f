"""Runs a user's command and leaves nothing of it behind: `python -m probes.supervise`.

The first line on stdin is the command as JSON. The command ends with stdin. All its processes, in
any session, stay below this process, which adopts orphans. Its scratch folders are removed last.
The exit code is the command's, or 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def main() -> int:
    """Runs the command to its end, or to the end of stdin; returns the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    request = json.loads(sys.stdin.buffer.readline())
    try:
        command = subprocess.Popen(
            request["argv"],
            stdin=subprocess.DEVNULL,
            cwd=request["folder"],
            env=dict(os.environ) | request["environment"],
        )
        return _watched(command)
    finally:
        clear()
        for folder in request["scratch"]:
            shutil.rmtree(folder, ignore_errors=True)


def _watched(command: subprocess.Popen[bytes]) -> int:
    while (code := command.poll()) is None:
        ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if ready and not os.read(sys.stdin.fileno(), 1):
            return 0  # the study ended
    return code if code >= 0 else 128 - code


def clear() -> None:
    """Kill all descendants of this process."""
    while below := psutil.Process().children(recursive=True):
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
