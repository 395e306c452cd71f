"""Ranks as processes of this machine, each the leader of a session of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from autotune.wire.messages import Dial, encode

REAP_S = 5.0
MAX_LOG_BYTES = 16 * 2**20
# -P: a folder named like a module in the user's working directory must not stand in for it.
WORKER = [sys.executable, "-P", "-m", "probes"]
OPS = [sys.executable, "-P", "-m", "probes.ops"]


class LocalProcess:
    """A process that leads a session of its own; it reads `stdin` and appends to `log`.

    Its temporary files are in a folder beside the log, which goes with the process.
    """

    def __init__(
        self, command: list[str], stdin: bytes, log: Path, environment: dict[str, str]
    ) -> None:
        self._log = log
        self._log_was_cut = False
        self._temporary = log.with_suffix(".tmp").absolute()
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ
                | _paths()
                | _LOOPBACK
                | {"TMPDIR": str(self._temporary)}
                | environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(stdin)
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs.

        The process stays a zombie: its number must not go to another before `signal` is done.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        exited = ended.si_code == os.CLD_EXITED
        return ended.si_status if exited else -ended.si_status

    def limit_log(self) -> str:
        """Cut the middle out of a log above `MAX_LOG_BYTES`; what to tell of it, the first time.

        The process goes on appending: to write at an offset of its own would leave a hole.
        """
        with contextlib.suppress(OSError):  # deleted meanwhile, or the disk is full
            if self._log.stat().st_size > MAX_LOG_BYTES:
                _cut_middle(self._log)
                first, self._log_was_cut = not self._log_was_cut, True
                if first:
                    return f"{self._log.name} passed {_limit()}; its middle is cut"
        return ""

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to every process of the session."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def reap(self) -> None:
        """Collect the process, which has ended or been killed, and its temporary files."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver: init gets it
            self._process.wait(REAP_S)
        shutil.rmtree(self._temporary, ignore_errors=True)


def start_rank(dial: Dial, log: Path, environment: dict[str, str]) -> LocalProcess:
    """A rank that will dial the study."""
    return LocalProcess(WORKER, encode(dial) + b"\n", log, environment)


def _limit() -> str:
    return f"{MAX_LOG_BYTES / 2**20:.0f} MiB"


def _cut_middle(log: Path) -> None:
    """Keep the first half of `MAX_LOG_BYTES` and the last quarter."""
    with log.open("rb+") as stream:
        stream.seek(-(MAX_LOG_BYTES // 4), os.SEEK_END)
        latest = stream.read(MAX_LOG_BYTES // 4)
        stream.truncate(MAX_LOG_BYTES // 2)
    mark = f"\n[this log passed {_limit()}; its middle was cut out here]\n"
    with log.open("ab") as stream:
        stream.write(mark.encode() + latest)


# Ranks of one machine meet on its loopback; looking the host's name up can fail in a container.
_LOOPBACK = (
    {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
    }
    if sys.platform == "linux"
    else {}
)


def _paths() -> dict[str, str]:
    """Where a rank finds its programs and modules.

    PATH has ninja, which compiles DeepSpeed's ops, though nobody activated this environment.
    PYTHONPATH has the probes that came with this study, in a checkout that is not installed.
    """
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    root = str(Path(__file__).parents[2])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {"PATH": programs}
    modules = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"PATH": programs, "PYTHONPATH": modules}
