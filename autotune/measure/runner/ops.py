"""DeepSpeed's ops: compiled in a process of their own, before a rank needs them.

A compilation may take half of the time that is left. A candidate whose op could not be loaded is
`unsupported` for this run of the study. A resumed study tries it again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.measure.runner import NodeLostError, Result, StopRequestedError
from autotune.measure.runner.node import Node
from autotune.measure.runner.process import RankProcess
from autotune.measure.runner.wiring import Wiring
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.outcome import Verdict
from autotune.space.workload import Workload
from autotune.wire.agents import Task

LOAD_SHARE = 0.5
"""Share of the remaining time for loading. It leaves as much time again to measure with the op."""
POLL_S = 0.1
TERM_GRACE_S = 1.0
_one_at_a_time = threading.Lock()


class Ops:
    """The ops that are loaded, and the process that loads more."""

    def __init__(self, device_kind: str, workload: Workload, wiring: Wiring) -> None:
        self._device_kind = device_kind
        self._workload = workload
        self._wiring = wiring
        self._tried: set[tuple[Node, str]] = set()
        self._lacking: dict[str, str] = {}
        """Ops that could not be loaded, and why."""
        self._processes: list[RankProcess] = []

    def missing(self, candidate: Candidate, nodes: Sequence[Node]) -> set[str]:
        """Ops that `candidate` needs and that some of `nodes` did not try yet."""
        return {
            op
            for op in self._needed(candidate)
            if any((node, op) not in self._tried for node in nodes)
        }

    def refusal(self, candidate: Candidate) -> Result | None:
        """The result of `candidate`, if it needs an op that could not be loaded."""
        for op in sorted(self._needed(candidate) & self._lacking.keys()):
            return Result(verdict=Verdict.UNSUPPORTED, reason=self._lacking[op], lacks_op=op)
        return None

    def _needed(self, candidate: Candidate) -> set[str]:
        engine = engine_of(self._workload, candidate)
        return engine.ops(candidate, self._workload, self._device_kind)

    def load(self, names: set[str], nodes: Sequence[Node], deadline: float) -> None:
        """Load `names` on each of `nodes`, once each; torch compiles them at first.

        The wait ends after `LOAD_SHARE` of the time until `deadline`. Raises StopRequestedError if
        the user asked to stop.
        """
        self._wiring.note(
            f"loading DeepSpeed's {', '.join(sorted(names))}; the first time on a machine this"
            " compiles for about a minute"
        )
        with _one_at_a_time:  # they are compiled in one place, for all groups
            self._load(names, nodes, deadline)

    def _load(self, names: set[str], nodes: Sequence[Node], deadline: float) -> None:
        began = time.monotonic()
        enough = began + LOAD_SHARE * (deadline - began)
        task = Task(program="ops", family=self._workload.family, ops=sorted(names))
        tried = str(len(self._tried))
        names_of = ("-".join(filter(None, ["ops", tried, node.name])) for node in nodes)
        logs = [self._wiring.logs / f"{name}.log" for name in names_of]
        try:
            for node, log in zip(nodes, logs, strict=True):
                self._processes.append(node.start(task, None, log))
            while time.monotonic() < enough and None in self._codes():
                if self._wiring.stop():
                    raise StopRequestedError
                for process in self._processes:
                    if said := process.limit_log():
                        self._wiring.note(said)
                time.sleep(POLL_S)
            took_s = time.monotonic() - began
            whys = (_why_not(c, took_s, log) for c, log in zip(self._codes(), logs, strict=True))
            why = next(filter(None, whys), "")
        finally:
            for process in self._processes:
                _end(process)
            self._processes = []
        for node in nodes:
            if node.lost:
                raise NodeLostError(node.lost)
        self._tried |= {(node, name) for node in nodes for name in names}
        if why:
            self._lacking |= {op: f"DeepSpeed's {op} {why}" for op in names}

    def kill(self) -> None:
        """SIGKILL to the loading processes; for a second Ctrl-C."""
        for process in self._processes:
            process.signal(signal.SIGKILL)

    def _codes(self) -> list[int | None]:
        return [process.exit_code() for process in self._processes]


def _why_not(code: int | None, took_s: float, log: Path) -> str:
    """The error of a process that loads ops and ended with `code`; empty without one."""
    if code is None:
        return (
            f"was not loaded in {took_s:.0f} s, {LOAD_SHARE:.0%} of the time that was left:"
            " give more --budget"
        )
    return f"cannot be loaded, see {log.name}: repair that, or use --offload none" if code else ""


def _end(process: RankProcess) -> None:
    process.signal(signal.SIGTERM)
    ended = time.monotonic() + TERM_GRACE_S
    while process.exit_code() is None and time.monotonic() < ended:
        time.sleep(POLL_S)
    process.signal(signal.SIGKILL)
    process.reap()
