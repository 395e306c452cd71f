"""What a configuration says, in this program's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

AUTO = "auto"
_ALIKE = 0.9
"""Of a misspelled name and the right one, as difflib has it. No two names that transformers or
DeepSpeed know are as alike as one of them and one that is read here."""
_SECTIONS = 2
"""Depth to which names are looked at."""


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


def misspelled(body: Mapping[str, Any], reading: Reading) -> Iterator[Finding]:
    """Names in `body` that nothing reads, beside which the one that is meant is missing."""
    known = {part for path in reading.keys.values() for part in path.split(".")}
    names = list(_names(body))
    said = {path[-1] for path in names}
    for path in names:
        near = get_close_matches(path[-1], known - said, 1, _ALIKE)
        if path[-1] not in known and near:
            yield Finding(
                "error", f"{reading.name}: {'.'.join(path)}",
                f"{reading.tool} knows no such name; did you mean {near[0]}?",
            )  # fmt: skip


def _names(body: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in body.items():
        path = (*above, str(name))
        yield path
        if isinstance(value, dict) and len(path) < _SECTIONS:
            yield from _names(value, path)


def number(value: Any) -> int | str | None:
    """A count, or "auto"; None for what is neither."""
    if value == AUTO:
        return AUTO
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def named(**files: Any) -> dict[str, str]:
    """Of `files`, those that are paths."""
    return {key: value for key, value in files.items() if isinstance(value, str) and value}


def moved_key(offload: str | None, key: str) -> dict[str, str]:
    """The `key` of the parameters, where these are moved: it is what differs, then."""
    return {"offload": key} if offload in ("all", "param") else {}


def offload_of(*, optimizer: bool, param: bool) -> str:
    """ "all" is both; parameters alone, which no study measures, are "param"."""
    if param:
        return "all" if optimizer else "param"
    return "optimizer" if optimizer else "none"


def is_on(value: Any) -> bool:
    """Whether a switch is on, as YAML and JSON of these tools write it."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))
