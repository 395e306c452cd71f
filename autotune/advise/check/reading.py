"""A configuration in this program's terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

AUTO = "auto"
_ALIKE = 0.9
"""Of a misspelled name and the right one, as difflib has it. No two names that transformers or
accelerate know are as alike as one of them and one that is read here."""
ALIKE_OF_ALL = 0.8
"""The same where all names are known: none of them is taken for another."""

STAGES = (0, 1, 2, 3)
MOVED = ("cpu", "nvme")
"""Devices to which ZeRO offloads."""
DEVICES = ("none", *MOVED)
LEAST_STAGE = {"optimizer": 1, "param": 3}
"""Of ZeRO, that offloads each."""
_COUNTS = ("micro_batch", "grad_accum", "global_batch")
_SIZES = ("world_size", "nodes", "seq_len", "zero_stage")

Names = Mapping[tuple[str, ...], frozenset[str]]
"""What is known in each section, by its path; () is the file itself."""


@dataclass(frozen=True)
class Finding:
    """Something about a configuration."""

    level: Literal["error", "warning"]
    """Errors end a launch or change what is trained; warnings cost time or memory."""
    where: str
    """File and key."""
    what: str
    """The problem, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The settings of one file; None if it lacks a setting, "auto" if another tool fills it in."""

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
    compile: str | None = None
    loss: str | None = None
    adapters: str | None = None
    """"none" where the whole model is trained, else such as "r=16"."""
    inner: tuple[Reading, ...] = ()
    """Configurations that it holds of other tools."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of other tools that it names: key to path."""
    fills_auto: bool = False
    """Whether the tool fills "auto" in DeepSpeed's config."""
    autos: tuple[str, ...] = ()
    """Keys that hold "auto"."""
    findings: tuple[Finding, ...] = ()
    """Of its reader: old names, settings that the tool refuses, costs without a use."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The tool's key of each field."""

    def called(self, name: str) -> str:
        """File and key of the field `name`."""
        if name == "offload" and self.offload in ("all", "param"):
            name = "offload_param"  # which is what differs, then
        return f"{self.name}: {self.keys.get(name, name)}"


def with_misspelled(
    reading: Reading, body: Mapping[str, Any], names: Names | None = None
) -> Reading:
    """Adds a finding for each unknown key in `body` that resembles a known and missing one.
    `names` are all keys of the tool; without them, the keys in the `reading` count as known."""
    known, alike = names or _read_of(reading), ALIKE_OF_ALL if names else _ALIKE
    found = tuple(
        Finding(
            "error", f"{reading.name}: {'.'.join(path)}",
            f"{reading.tool} knows no such name; did you mean {meant}?",
        )
        for path, meant in _misspelled(body, (), known, alike)
    )  # fmt: skip
    return replace(reading, findings=(*reading.findings, *found))


def _read_of(reading: Reading) -> Names:
    """The names that are read here, by their section."""
    known: dict[tuple[str, ...], frozenset[str]] = {(): frozenset()}
    for path in reading.keys.values():
        *above, name = path.split(".")
        known[tuple(above)] = known.get(tuple(above), frozenset()) | {name}
        known[()] |= {above[0]} if above else set()
    return known


def _misspelled(
    section: Mapping[str, Any], at: tuple[str, ...], known: Names, alike: float
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths, and the names that are meant."""
    for name, value in section.items():
        path = (*at, str(name))
        near = get_close_matches(path[-1], known[at] - section.keys(), 1, alike)
        if near and name not in known[at]:
            yield path, near[0]
        elif path in known and isinstance(value, dict):
            yield from _misspelled(value, path, known, alike)


def section(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The section `name` of `body`; empty where there is none."""
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def facts(keys: Mapping[str, str], body: dict[str, Any], **defaults: int) -> dict[str, Any]:
    """Fields of a `Reading` that `body` has under these `keys`, or else the tool's `defaults`."""
    found: dict[str, Any] = {}
    for name in keys.keys() & {*_COUNTS, *_SIZES}:
        *above, key = keys[name].split(".")
        part = section(body, above[0]) if above else body
        value = part.get(key, defaults.get(name))
        whole = value if isinstance(value, int) else None
        found[name] = number(value) if name in _COUNTS else whole
    return found


def number(value: Any) -> int | str | None:
    """A count, or "auto"; None for what is neither."""
    if value == AUTO:
        return AUTO
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def refused_counts(
    name: str, body: Mapping[str, Any], least: Mapping[str, int], at: str = ""
) -> Iterator[Finding]:
    """Values in `body` that are no whole number, or below the `least` of their key."""
    for key, smallest in least.items():
        value = body.get(key)
        if value is None or value == AUTO or (type(value) is int and value >= smallest):
            continue
        yield Finding(
            "error", f"{name}: {at}{key}",
            f"is {value!r:.40}; write a whole number, {smallest} or more",
        )  # fmt: skip


def refused_choice(where: str, value: Any, choices: Sequence[Any]) -> Iterator[Finding]:
    """Whether DeepSpeed refuses `value`, which is none of its `choices`."""
    shown = [str(each) for each in choices]
    if value not in (AUTO, *choices, *shown):
        yield Finding(
            "error", where, f"is {value!r:.40}; DeepSpeed takes one of {', '.join(shown)}"
        )


def refused_offload(where: str, what: str, device: Any, stage: Any) -> Iterator[Finding]:
    """Whether ZeRO's `stage` cannot move `what` to a `device`."""
    least = LEAST_STAGE[what]
    if device in MOVED and isinstance(stage, int) and stage < least:
        yield Finding(
            "error", where,
            f"stage {stage} does not offload that; it needs stage {least} or more",
        )  # fmt: skip


def named(**files: Any) -> dict[str, str]:
    """Of `files`, those that are paths."""
    return {key: value for key, value in files.items() if isinstance(value, str) and value}


def offload_of(*, optimizer: bool, param: bool) -> str:
    """Both are "all"; parameters alone, which no study measures, "param"."""
    if param:
        return "all" if optimizer else "param"
    return "optimizer" if optimizer else "none"


def is_on(value: Any) -> bool:
    """Whether a switch is on, as YAML and JSON of these tools write it."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))
