"""What a configuration says, in this program's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AUTO = "auto"


@dataclass(frozen=True)
class Finding:
    """Something about a configuration."""

    level: Literal["error", "warning"]
    """Errors end a launch or change what is trained; warnings cost time or memory."""
    where: str
    """File and key."""
    what: str
    """What is so, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One file; None for what it does not say. "auto" is filled in by somebody else."""

    name: str
    """Of the file."""
    tool: str
    micro_batch: int | str | None = None
    grad_accum: int | str | None = None
    global_batch: int | str | None = None
    """In samples."""
    world_size: int | None = None
    nodes: int | None = None
    seq_len: int | None = None
    zero_stage: int | None = None
    offload: str | None = None
    dtype: str | None = None
    checkpointing: str | None = None
    optimizer: str | None = None
    compile: str | None = None
    adapters: str | None = None
    """"none" where the whole model is trained, else such as "r=16"."""
    inner: tuple[Reading, ...] = ()
    """Configurations that it holds of other tools."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Those that it names instead: key to path."""
    fills_auto: bool = False
    """Whether the tool fills "auto" in DeepSpeed's config."""
    autos: tuple[str, ...] = ()
    """Keys that hold "auto"."""
    findings: tuple[Finding, ...] = ()
    """What its reader saw: old names, and what costs for nothing."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """How the tool calls what is said here."""

    def called(self, name: str) -> str:
        """File and key of what is called `name` here."""
        return f"{self.name}: {self.keys.get(name, name)}"


def number(value: Any) -> int | str | None:
    """A count, or "auto"; None for what is neither."""
    if value == AUTO:
        return AUTO
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def named(**files: Any) -> dict[str, str]:
    """Of `files`, those that are paths."""
    return {key: value for key, value in files.items() if isinstance(value, str) and value}


def is_on(value: Any) -> bool:
    """Whether a switch is on, as YAML and JSON of these tools write it."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))
