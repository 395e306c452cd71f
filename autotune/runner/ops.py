"""DeepSpeed's ops: compiled in a process of their own, before a rank needs them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autotune.device import Device
from autotune.engines import deepspeed
from autotune.runner import StopRequestedError
from autotune.runner.local import OPS, LocalProcess
from autotune.space.space import Candidate, Workload

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
        self._loaded: set[str] = set()
        self._process: LocalProcess | None = None
        self.environment: dict[str, str] = {}
        """What ranks need to find the loaded ops."""

    def missing(self, candidate: Candidate) -> set[str]:
        """Ops that `candidate` needs and that were not loaded yet."""
        if self._workload.engine_of(candidate) != "deepspeed":
            return set()
        return deepspeed.ops(candidate, self._workload, self._device.kind) - self._loaded

    def load(self, names: set[str], deadline: float) -> None:
        """Load `names`, compiled first where they never were; each is tried once.

        Raises:
            StopRequestedError: the user asked to stop.
        """
        self._note(
            f"loading DeepSpeed's {', '.join(sorted(names))};"
            " on a machine that never did, this compiles for about a minute"
        )
        self.environment = _extensions(self._logs)
        log = self._logs / f"ops-{len(self._loaded)}.log"
        environment = self._device.rank_environment(1) | self.environment
        self._process = process = LocalProcess([*OPS, *sorted(names)], b"", log, environment)
        try:
            while process.exit_code() is None and time.monotonic() < deadline:
                if self._stop():
                    raise StopRequestedError
                if said := process.limit_log():
                    self._note(said)
                time.sleep(POLL_S)
            if process.exit_code() not in (0, None):
                self._note(f"DeepSpeed's ops could not be loaded; see {log.name}")
        finally:
            _end(process)
            self._process = None
        self._loaded |= names

    def kill(self) -> None:
        """SIGKILL to what loads; for a second Ctrl-C."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)


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
