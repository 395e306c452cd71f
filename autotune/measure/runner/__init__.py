"""Runners carry a probe out.

Contracts:

- **A verdict never comes from stdout.** Ranks write stdout and stderr to `logs/`, and nobody
  parses them. Evidence is a message, the end of a connection, an exit status, or the kernel's
  OOM count.
- **One rank's out-of-memory error is the group's.** So after a first failure the group waits 3 s
  for a peer that names memory as the cause. A bare SIGKILL counts as memory only if the kernel's
  OOM count grew.
- **A group serves one build.** `micro_batch` and `seq_len` change in place. The group is retired
  at its first failure. Finals always get fresh groups. A memory verdict of a warm group is
  repeated once in a fresh one before it bounds anything.
- **There is one path to a process.** Pools ask for seats, and groups watch `RankProcess`es.
  Neither knows whether the node is this machine.
- **A lost node is no verdict.** A node is lost after 7 s of silence, or with its connection. The
  thread that listens to it reports at once (`Wiring.on_lost`). Nothing starts on a silent node:
  the pool waits. A crash or a hang counts against a candidate only after every node of its group
  was heard since. Ranks on other nodes mostly complain first. At the end of a study each agent
  hangs up in turn, in milliseconds; one that is silent for 7 s is lost.
- **No process is left.** Each rank leads a session of its own. The kernel kills it when the study
  dies, and it ends its session with the connection. On CUDA the next group waits until device
  memory is at its baseline, or constant for half a second.
- **Nothing is written beside the study folder.** Each process has a temporary folder of its own
  beside its log. The folder goes with the process, at the latest on resume.
- **Sockets for one machine listen on loopback**: the channel, and the ranks' rendezvous store,
  which has no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.space.candidate import Build, Candidate
from autotune.space.outcome import ProbeEnd
from autotune.space.space import Space
from autotune.space.trace import Trace
from autotune.wire.reports import Report
from autotune.wire.stopping import Rule


class NodeLostError(Exception):
    """A node with ranks of a probe is gone. The message names the node."""


class StopRequestedError(Exception):
    """The user asked the study to stop while a probe ran."""


@dataclass(frozen=True, kw_only=True)
class Job:
    candidate: Candidate
    grad_accum: int
    """Micro-steps of the real schedule."""
    micro_steps: int
    """Micro-steps to run of it."""
    rule: Rule
    needed_step_s: float | None
    """Slower steps than this end the probe early."""
    fresh: bool
    """Run in a new group even if one is live."""
    budget: str = "the budget"
    """What ends at the deadline, in words."""
    mixed: bool = False
    """Run drawn lengths, not only the longest samples, if the workload has several."""
    phases: bool = False
    """Run a script with --phase-args, until it has evaluated and saved; time nothing."""


OUT_OF_BUDGET = "the budget ended during this probe"
"""Reason of a probe without time left; the prober knows whether the whole budget ended."""


@dataclass(frozen=True, kw_only=True)
class Result(ProbeEnd):
    """How a probe ended, as the runner saw it. The study judges it against the limits."""

    report: Report | None = None
    """Over all ranks: slowest times, largest peaks, host memory and own CPU time summed."""
    foreign_bytes: int = 0
    """Bytes of others on a device whose memory ran out."""
    waited_s: float = 0.0
    """Wait for its turn to make steps, beside other groups of its machine."""
    warm: bool = False
    """The group had already run another probe."""
    put_off: bool = False
    """The candidate is not the cause, e.g. a node was lost: ask for it again, elsewhere. The
    verdict is then `SKIPPED`, and the reason says what happened."""
    gone: str = ""
    """Why this runner can run nothing more, if it put the job off; else empty."""

    @property
    def reported(self) -> Report:
        """The report. Raises ValueError without one."""
        if self.report is None:
            raise ValueError(f"{self.verdict}: {self.reason}")
        return self.report


class Runner(Protocol):
    """One slot of a study. One thread at a time calls its methods; any may call `kill`."""

    @property
    def live_build(self) -> Build | None: ...

    def run(self, job: Job, deadline: float) -> Result:
        """Carry `job` out; `deadline` is on the scale of the budget's `Clock.at`.

        Raises:
            StopRequestedError: the user asked to stop.
            NoNodesError: this runner can run nothing more; the study puts the job off.
        """

    def trace(self, space: Space, limit_s: float, deadline: float) -> Trace | None:
        """The memory that the models of `space` need, found without its devices.

        None if it takes longer than `limit_s` or until the `deadline`. Imports that ranks need,
        too, do not count against `limit_s`. Raises StopRequestedError if the user asked to stop.
        """

    def retire(self, until: float) -> None:
        """End the live group, if there is one. Wait until its memory is free, at most `until`."""

    def kill(self) -> None:
        """End everything at once; for a second Ctrl-C."""

    def close(self) -> None:
        """End all processes; nothing is probed after it."""
