"""Messages between the study and the agent of a node. An agent starts processes, but no others
than these messages can name: ranks, and what compiles DeepSpeed's ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.wire.dial import Dial

BEAT_S = 1.0
"""Between two beats, either way."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Agent to study, first."""

    name: str
    """Of the node, as people call it."""
    version: str
    """Of autotune, there."""
    pid: int


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Study to agent, once: what it is to open."""

    device: str
    """As in `--device`: "auto", "cpu", "cuda" or "cuda:0,2", there."""
    lease_s: float
    """An agent that hears nothing for so long kills its ranks and leaves."""


@dataclass(frozen=True, kw_only=True)
class NodeDevice:
    """One device of a node."""

    uuid: str
    name: str
    capacity_bytes: int
    in_use_bytes: int
    bf16: bool
    busy: str
    """Who else uses it so much that no study may begin there; empty for nobody."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Agent to study: what the node has."""

    kind: Literal["cpu", "cuda"]
    devices: list[NodeDevice]
    fingerprint: dict[str, Any]
    """Of its devices."""
    software: dict[str, str]
    """Versions of what is installed there."""
    host_memory_bytes: int
    cores: int
    energy_at: str
    energy_lack: str
    address: str
    """Of the interface that reaches the study."""


@dataclass(frozen=True)
class Refused:
    """Agent to study: why the node cannot serve it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a process on a node is to be."""

    program: Literal["rank", "ops"]
    family: str = ""
    """Of a rank's models."""
    engine: str = ""
    """Of a rank, which is forked from the server for it where there is one; empty for none."""
    ops: list[str] = field(default_factory=list)
    ranks: int = 1
    """Of its group, on this node."""
    local_rank: int = 0
    share: int = 0
    """Which part of the node is its group's."""
    shares: int = 1
    """Groups that share the node."""
    spans: bool = False
    """Whether the group has ranks on other nodes."""
    environment: dict[str, str] = field(default_factory=dict)
    """What the process has beside that."""


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Study to agent: have ranks of that engine ready to be forked."""

    engine: str
    family: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Agent to study: ranks of that engine start at once, or as fast as they can here."""

    engine: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """Study to agent: start a process."""

    token: str
    """What it is called from now on."""
    task: Task
    dial: Dial | None
    """Of a rank."""
    log: str
    """Name of the file for what it prints."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Study to agent: send this to every process of a session."""

    token: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Study to agent: collect a process that ended or was killed."""

    token: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """Agent to study."""

    token: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Agent to study: exit code, negative for a signal."""

    token: str
    code: int


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Agent to study: nothing of the process is left."""

    token: str
    log: str
    """What it printed; of much, the beginning and the end."""


@dataclass(frozen=True)
class Unforkable:
    """Study to agent: forked ranks did not come up; start them in another way."""

    why: str


@dataclass(frozen=True)
class Proven:
    """Study to agent: forked ranks came up."""


@dataclass(frozen=True)
class Said:
    """Agent to study: what the user should know."""

    text: str


@dataclass(frozen=True)
class Leaving:
    """Agent to study, last: why it leaves before the study ends."""

    why: str


@dataclass(frozen=True)
class Beat:
    """Either way, every second."""

    in_use_bytes: list[int] = field(default_factory=list)
    """Of an agent: of its devices, now."""
    oom_kills: int = 0
    """Of an agent: processes that its kernel has killed for memory."""


AgentMessage = (
    Joined | Serve | Facts | Refused | Prepare | Prepared | Run | Signal | Collect
    | Started | Ended | Collected | Unforkable | Proven | Said | Leaving | Beat
)  # fmt: skip
