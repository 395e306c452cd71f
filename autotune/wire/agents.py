"""Messages between the study and the agent of a node.

An agent starts only processes that these messages can name: ranks, and builds of DeepSpeed's ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.wire.dial import Dial

BEAT_S = 1.0
"""Seconds between two beats, in both directions."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Agent to study: its first message."""

    name: str
    version: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Study to agent, once: the devices to open."""

    device: str
    """As in `--device`: "auto", "cpu", "cuda" or "cuda:0,2" of the node."""
    lease_s: float
    """Silence after which the agent kills its ranks and exits."""


@dataclass(frozen=True, kw_only=True)
class NodeDevice:
    uuid: str
    name: str
    capacity_bytes: int
    in_use_bytes: int
    bf16: bool
    busy: str
    """Other users of the device that keep a study from starting; empty for none."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Agent to study: hardware and software of the node."""

    kind: Literal["cpu", "cuda"]
    devices: list[NodeDevice]
    fingerprint: dict[str, Any]
    software: dict[str, str]
    """Installed packages and their versions."""
    host_memory_bytes: int
    cores: int
    energy_at: str
    energy_lack: str
    address: str
    """Address of the interface that reaches the study."""
    oom_kills: int = 0
    """As in `Beat`; the first one may come after a rank ends."""


@dataclass(frozen=True)
class Refused:
    """Agent to study: why the node cannot serve it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """A process to start on a node."""

    program: Literal["rank", "ops"]
    family: str = ""
    """Model family of a rank."""
    engine: str = ""
    """Engine of a rank, which is forked from this engine's server if there is one; or empty."""
    ops: list[str] = field(default_factory=list)
    ranks: int = 1
    """Ranks of its group on this node."""
    local_rank: int = 0
    share: int = 0
    """Index of its group's part of the node."""
    shares: int = 1
    """Groups that share the node."""
    spans: bool = False
    """Whether the group has ranks on other nodes."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Study to agent: start the server that ranks of this engine are forked from."""

    engine: str
    family: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Agent to study: the node is prepared for ranks of this engine."""

    engine: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """Study to agent: start a process."""

    token: str
    """Its name in later messages."""
    task: Task
    dial: Dial | None
    """For a rank only."""
    log: str
    """Name of the file for its output."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Study to agent: send this signal to all processes of a session."""

    token: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Study to agent: reap a process that ended or was killed."""

    token: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """Agent to study: the process runs."""

    token: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Agent to study: the process ended with this exit code, negative for a signal."""

    token: str
    code: int


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Agent to study: the process is reaped."""

    token: str
    log: str
    """Its output; of a long one, the beginning and the end."""


@dataclass(frozen=True)
class Unforkable:
    """Study to agent: forked ranks failed to start; spawn them from now on."""

    why: str


@dataclass(frozen=True)
class Proven:
    """Study to agent: forked ranks started."""


@dataclass(frozen=True)
class Said:
    """Agent to study: a line for the user."""

    text: str


@dataclass(frozen=True)
class Leaving:
    """Agent to study, last: why it exits before the study ends."""

    why: str


@dataclass(frozen=True)
class Beat:
    """In both directions, every second."""

    in_use_bytes: list[int] = field(default_factory=list)
    """From an agent: memory in use on each of its devices."""
    oom_kills: int = 0
    """From an agent: processes that its kernel has killed for lack of memory."""


AgentMessage = (
    Joined | Serve | Facts | Refused | Prepare | Prepared | Run | Signal | Collect
    | Started | Ended | Collected | Unforkable | Proven | Said | Leaving | Beat
)  # fmt: skip
