"""A configuration in this program's terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

AUTO = "auto"
_ALIKE = 0.9
"""The least similarity, by difflib, of a misspelled name and the right one. The names of
transformers and accelerate are less similar to those that are read here."""
ALIKE_OF_ALL = 0.8
"""The same if all names of the tool are known."""

STAGES = (0, 1, 2, 3)
MOVED = ("cpu", "nvme")
"""Devices to which ZeRO offloads."""
DEVICES = ("none", *MOVED)
LEAST_STAGE = {"optimizer": 1, "param": 3}
"""The least ZeRO stage that offloads each."""
_COUNTS = ("micro_batch", "grad_accum", "global_batch")
_SIZES = ("world_size", "nodes", "seq_len", "zero_stage")

Names = Mapping[tuple[str, ...], frozenset[str]]
"""Known names by the path of their section; () is the file itself."""


@dataclass(frozen=True)
class Finding:
    """A remark on a configuration."""

    level: Literal["error", "warning"]
    """Errors end a launch or change what is trained; warnings cost time or memory."""
    where: str
    """File and key."""
    what: str
    """The problem and its remedy."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The settings of one file; None if it lacks a setting, "auto" if another tool fills it in."""

    name: str
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
    optimizer: str | None = None
    loss: str | None = None
    base: str | None = None
    """"nf4" or "int8", or else "not quantized"."""
    adapters: str | None = None
    """"none" for a whole model, else e.g. "r=16"."""
    inner: tuple[Reading, ...] = ()
    """Configurations of other tools inside it."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of other tools that it names: key to path."""
    fills_auto: bool = False
    """Whether the tool fills "auto" in DeepSpeed's config."""
    autos: tuple[str, ...] = ()
    """Keys that hold "auto"."""
    findings: tuple[Finding, ...] = ()
    """Its reader's findings: old names, settings that the tool refuses, useless costs."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The tool's key of each field."""

    def called(self, name: str) -> str:
        """File and key of the field `name`."""
        if name == "offload" and self.offload in ("all", "param"):
            name = "offload_param"  # then this key differs
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
    """The names of the `reading`'s keys, by section."""
    known: dict[tuple[str, ...], frozenset[str]] = {(): frozenset()}
    for path in reading.keys.values():
        *above, name = path.split(".")
        known[tuple(above)] = known.get(tuple(above), frozenset()) | {name}
        known[()] |= {above[0]} if above else set()
    return known


def _misspelled(
    section: Mapping[str, Any], at: tuple[str, ...], known: Names, alike: float
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths of misspelled names, and the right names."""
    for name, value in section.items():
        path = (*at, str(name))
        near = get_close_matches(path[-1], known[at] - section.keys(), 1, alike)
        if near and name not in known[at]:
            yield path, near[0]
        elif path in known and isinstance(value, dict):
            yield from _misspelled(value, path, known, alike)


def section(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The section `name` of `body`; empty if there is none."""
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def facts(keys: Mapping[str, str], body: dict[str, Any], **defaults: int) -> dict[str, Any]:
    """Fields of a `Reading` under these `keys` of `body`, else the tool's `defaults`."""
    found: dict[str, Any] = {}
    for name in keys.keys() & {*_COUNTS, *_SIZES}:
        *above, key = keys[name].split(".")
        part = section(body, above[0]) if above else body
        value = part.get(key, defaults.get(name))
        whole = value if isinstance(value, int) else None
        found[name] = number(value) if name in _COUNTS else whole
    return found


def number(value: Any) -> int | str | None:
    """A count, or "auto"; None for other values."""
    if value == AUTO:
        return AUTO
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def refused_counts(
    name: str, body: Mapping[str, Any], least: Mapping[str, int], at: str = ""
) -> Iterator[Finding]:
    """Findings about values in `body` that are no whole number, or below their key's `least`."""
    for key, smallest in least.items():
        value = body.get(key)
        if value is None or value == AUTO or (type(value) is int and value >= smallest):
            continue
        yield Finding(
            "error", f"{name}: {at}{key}",
            f"is {value!r:.40}; write a whole number, {smallest} or more",
        )  # fmt: skip


def refused_choice(where: str, value: Any, choices: Sequence[Any]) -> Iterator[Finding]:
    """A finding if DeepSpeed refuses `value`, since it is none of its `choices`."""
    shown = [str(each) for each in choices]
    if value not in (AUTO, *choices, *shown):
        yield Finding(
            "error", where, f"is {value!r:.40}; DeepSpeed takes one of {', '.join(shown)}"
        )


def refused_offload(where: str, what: str, device: Any, stage: Any) -> Iterator[Finding]:
    """A finding if ZeRO's `stage` cannot move `what` to a `device`."""
    least = LEAST_STAGE[what]
    if device in MOVED and isinstance(stage, int) and stage < least:
        yield Finding(
            "error", where,
            f"stage {stage} does not offload that; it needs stage {least} or more",
        )  # fmt: skip


def named(**files: Any) -> dict[str, str]:
    """Those of `files` that are paths."""
    return {key: value for key, value in files.items() if isinstance(value, str) and value}


def offload_of(*, optimizer: bool, param: bool) -> str:
    """The value of --offload for both: "all". No study measures "param", parameters alone."""
    if param:
        return "all" if optimizer else "param"
    return "optimizer" if optimizer else "none"


def is_on(value: Any) -> bool:
    """Whether a switch is on, in YAML and JSON of these tools."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))
