"""Ranks as processes of this machine, each the leader of a session of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from autotune.installed import CHECKOUT
from autotune.wire.dial import Dial
from autotune.wire.messages import encode

REAP_S = 5.0
MAX_LOG_BYTES = 16 * 2**20
_MOST_READS = 1000
"""Reads of a log that grows while its middle is cut out."""
# -P: a folder in the user's working directory must not hide a module of that name.
WORKER = [sys.executable, "-P", "-m", "probes"]
SUPERVISE = [sys.executable, "-P", "-m", "probes.supervise"]
LOADER = [sys.executable, "-P", "-m", "probes.loader"]
OPS = [sys.executable, "-P", "-m", "probes.ops"]


class LocalProcess:
    """A child process that leads a session of its own and appends to `log`.

    Its temporary files are in a folder beside the log. `reap` removes that folder.
    """

    def __init__(self, pid: int, log: Path, popen: subprocess.Popen[bytes] | None = None) -> None:
        """`popen`, if it started the process, has to collect its exit code."""
        self.pid = pid
        self._log = log
        self._log_was_cut = False
        self._popen = popen
        self._code: int | None = None
        self.at_end: Callable[[int | None], None] = lambda code: None
        """`reap` calls it last, with the exit code."""

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs.

        The process stays a zombie: its number must not go to another before `signal` is done.
        """
        if self._code is not None:
            return self._code
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        exited = ended.si_code == os.CLD_EXITED
        return ended.si_status if exited else -ended.si_status

    def lives(self) -> bool:
        return self.exit_code() is None or any(map(self._is_of_session, psutil.process_iter()))

    def _is_of_session(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            there = os.getsid(process.pid) == self.pid
            return there and process.status() != psutil.STATUS_ZOMBIE
        return False

    def limit_log(self) -> str:
        """Cut the middle out of a log above `MAX_LOG_BYTES`. Return a note the first time.

        The process keeps appending: a write at its own offset would leave a hole.
        """
        with contextlib.suppress(OSError):  # deleted meanwhile, or the disk is full
            if self._log.stat().st_size > MAX_LOG_BYTES:
                _cut_middle(self._log)
                first, self._log_was_cut = not self._log_was_cut, True
                if first:
                    return f"{self._log.name} passed {_limit()}; its middle is cut"
        return ""

    def signal(self, number: signal.Signals) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def reap(self) -> None:
        """Collect the process, which has ended or been killed, and its temporary files."""
        deadline = time.monotonic() + REAP_S  # init collects a process stuck in a driver
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if code is not None and self._popen is not None:
            self._popen.wait()
        elif code is not None and self._code is None:
            os.waitpid(self.pid, 0)
        self._code = code
        shutil.rmtree(temporary_folder(self._log), ignore_errors=True)
        self.at_end(code)


def spawn(
    command: list[str], stdin: bytes | int, log: Path, environment: dict[str, str]
) -> LocalProcess:
    """Start `command`, which reads `stdin`: bytes, or a file descriptor."""
    with log.open("ab") as stream:
        popen = subprocess.Popen(
            command,
            stdin=stdin if isinstance(stdin, int) else subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=full_environment(log, environment),
            start_new_session=True,
        )
    if isinstance(stdin, bytes):
        assert popen.stdin is not None
        with contextlib.suppress(BrokenPipeError), popen.stdin as pipe:
            pipe.write(stdin)
    return LocalProcess(popen.pid, log, popen)


def start_rank(dial: Dial, log: Path, environment: dict[str, str]) -> LocalProcess:
    return spawn(WORKER, encode(dial) + b"\n", log, environment)


def start_loader(dial: Dial, log: Path, environment: dict[str, str]) -> LocalProcess:
    """A helper for a user's data loader. It imports torch, and nothing that trains."""
    return spawn(LOADER, encode(dial) + b"\n", log, environment)


def full_environment(log: Path, environment: dict[str, str]) -> dict[str, str]:
    """All variables of a process that appends to `log`, with a folder for its temporary files."""
    temporary = temporary_folder(log)
    temporary.mkdir(mode=0o700, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not of_launcher(name)}
    return inherited | _paths() | {"TMPDIR": str(temporary)} | environment


def temporary_folder(log: Path) -> Path:
    """For the temporary files of the process that appends to `log`."""
    return log.with_suffix(".tmp").absolute()


def _limit() -> str:
    return f"{MAX_LOG_BYTES / 2**20:.0f} MiB"


def _cut_middle(log: Path) -> None:
    """Keep the first half of `MAX_LOG_BYTES` and the last quarter."""
    latest = b""
    with log.open("rb+", buffering=0) as stream:
        stream.seek(-(MAX_LOG_BYTES // 4), os.SEEK_END)
        for _ in range(_MOST_READS):  # new data may arrive meanwhile
            if not (more := stream.readall()):
                break
            latest = (latest + more)[-(MAX_LOG_BYTES // 4) :]
        stream.truncate(MAX_LOG_BYTES // 2)
    latest = latest[-(MAX_LOG_BYTES // 4) :]
    mark = f"\n[this log passed {_limit()}; its middle was cut out here]\n"
    with log.open("ab") as stream:
        stream.write(mark.encode() + latest)


def of_launcher(name: str) -> bool:
    """Whether launchers set that variable to tell a rank, which libraries would believe."""
    return name in _PLACES or name.startswith(_LAUNCHERS)


_PLACES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip
_LAUNCHERS = ("SLURM", "SRUN_", "PMI_", "PMIX_", "PMI2_", "OMPI_", "TORCHELASTIC_", "RAY_")


def _paths() -> dict[str, str]:
    """Paths to a rank's programs, with ninja for DeepSpeed's ops, and to its modules."""
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    return {"PATH": programs} | module_path()


def module_path() -> dict[str, str]:
    """PYTHONPATH with this checkout; empty if autotune is installed."""
    libraries = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    if CHECKOUT in (Path(library).resolve() for library in libraries):
        return {}
    paths = [str(CHECKOUT), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
