"""DeepSpeed's ops: compiled in a process of their own, before a rank needs them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autotune.device.device import Device
from autotune.engines import engine_of
from autotune.outcome import Verdict
from autotune.runner import Result, StopRequestedError
from autotune.runner.local import OPS, LocalProcess, spawn
from autotune.space.candidate import Candidate
from autotune.space.workload import Workload

LOAD_SHARE = 0.5
"""What loading may take of the time that is left. What is through by then leaves as much time to
measure what needs it; what is not would leave too little for that, and for all other engines."""
POLL_S = 0.1
TERM_GRACE_S = 1.0


class Ops:
    """Which ops are loaded, and the process that loads more."""

    def __init__(
        self,
        device: Device,
        workload: Workload,
        logs: Path,
        stop: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._device = device
        self._workload = workload
        self._logs = logs
        self._stop = stop
        self._note = note
        self._tried: set[str] = set()
        self._lacking: dict[str, str] = {}
        """Ops that could not be loaded, and why."""
        self._process: LocalProcess | None = None
        self.environment: dict[str, str] = {}
        """What ranks need to find the loaded ops."""

    def missing(self, candidate: Candidate) -> set[str]:
        """Ops that `candidate` needs and that were not tried yet."""
        return self._needed(candidate) - self._tried

    def refusal(self, candidate: Candidate) -> Result | None:
        """What comes of `candidate` where it needs an op that could not be loaded."""
        for op in sorted(self._needed(candidate) & self._lacking.keys()):
            return Result(verdict=Verdict.UNSUPPORTED, reason=self._lacking[op], lacks_op=op)
        return None

    def _needed(self, candidate: Candidate) -> set[str]:
        engine = engine_of(self._workload, candidate)
        return engine.ops(candidate, self._workload, self._device.kind)

    def load(self, names: set[str], deadline: float) -> None:
        """Load `names`, compiled first where they never were; each is tried once.

        What is not loaded after a part of the time until `deadline` is not waited for.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        self._note(
            f"loading DeepSpeed's {', '.join(sorted(names))};"
            " on a machine that never did, this compiles for about a minute"
        )
        self.environment = _extensions(self._logs)
        log = self._logs / f"ops-{len(self._tried)}.log"
        began = time.monotonic()
        enough = began + LOAD_SHARE * (deadline - began)
        environment = self._device.rank_environment(1) | self.environment
        self._process = process = spawn([*OPS, *sorted(names)], b"", log, environment)
        try:
            while process.exit_code() is None and time.monotonic() < enough:
                if self._stop():
                    raise StopRequestedError
                if said := process.limit_log():
                    self._note(said)
                time.sleep(POLL_S)
            why = _why_not(process.exit_code(), time.monotonic() - began, log)
        finally:
            _end(process)
            self._process = None
        self._tried |= names
        if why:
            self._lacking |= {op: f"DeepSpeed's {op} {why}" for op in names}

    def kill(self) -> None:
        """SIGKILL to what loads; for a second Ctrl-C."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)


def _why_not(code: int | None, took_s: float, log: Path) -> str:
    """What went wrong where a process that loads ops ended with `code`; None if it has not."""
    if code is None:
        return (
            f"was not loaded in {took_s:.0f} s, {LOAD_SHARE:.0%} of the time that was left:"
            " give more --budget"
        )
    return f"cannot be loaded, see {log.name}: repair that, or use --offload none" if code else ""


def _extensions(logs: Path) -> dict[str, str]:
    """Has torch keep what it compiles in `logs` where it cannot write to its own cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    usual = os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions"
    try:
        Path(usual).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual):
            return {}
    except OSError:
        return {"TORCH_EXTENSIONS_DIR": str(logs.absolute() / "torch_extensions")}


def _end(process: LocalProcess) -> None:
    process.signal(signal.SIGTERM)
    ended = time.monotonic() + TERM_GRACE_S
    while process.exit_code() is None and time.monotonic() < ended:
        time.sleep(POLL_S)
    process.signal(signal.SIGKILL)
    process.reap()
