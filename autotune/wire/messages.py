"""All messages of the study and its processes: frozen dataclasses, read from JSON by msgspec.

One message is one `send_bytes` of `{"v": VERSION, "type": <class name>, "body": {...}}`. Anything
that does not decode to exactly the declared fields and types is a `WireError`, never a guess.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from autotune.wire.agents import AgentMessage
from autotune.wire.dial import Dial
from autotune.wire.forks import Fork, Forkable, Forked
from autotune.wire.helpers import Begin, Count, Counted, Describe, Described, Load, Loaded
from autotune.wire.hook import Left, Seen
from autotune.wire.ranks import Entered, Fault, Hello, Probe, Progress, Ready, Start, Stop, Store
from autotune.wire.reports import Report

VERSION = 1
MAX_MESSAGE_BYTES = 4 * 2**20


class WireError(ValueError):
    """The bytes are no message of this version."""


Message = (
    Start | Probe | Count | Describe | Load | Begin | Fork | Stop
    | Forkable | Forked | Hello | Counted | Described | Loaded | Store
    | Entered | Ready | Progress | Report | Fault | Seen | Left | AgentMessage
)  # fmt: skip
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}


class _Frame(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    type: str
    body: dict[str, Any]


def encode(message: Message | Dial) -> bytes:
    frame = {"v": VERSION, "type": type(message).__name__, "body": asdict(message)}
    # Not msgspec's own JSON: it has no NaN, and refuses text that is not UTF-8.
    return json.dumps(frame, separators=(",", ":")).encode()


def decode(data: bytes) -> Message:
    """The message in `data`. Raises WireError: no JSON, another version, an unknown type, or
    fields that do not match it."""
    message: Message = _decode(data, _TYPES)
    return message


def decode_dial(data: bytes) -> Dial:
    """The `Dial` in `data`. Raises `WireError` as `decode` does."""
    dial: Dial = _decode(data, {"Dial": Dial})
    return dial


def _decode(data: bytes, known: dict[str, type[Any]]) -> Any:
    try:
        frame = msgspec.convert(json.loads(data), _Frame)
        if frame.v != VERSION:
            raise ValueError(f"version {frame.v}, this side speaks {VERSION}")
        if frame.type not in known:
            raise ValueError(f"unknown message type {frame.type!r}")
        message = msgspec.convert(frame.body, known[frame.type])
        again = asdict(message)  # with defaults for what is missing, and without unknown fields
        if again != frame.body:
            odd = sorted(again.keys() ^ frame.body.keys())
            raise ValueError(f"{frame.type}: missing or unknown fields {odd or 'inside'}")
    except (ValueError, RecursionError) as error:
        raise WireError(f"not an autotune message: {str(error)!a:.300}") from error
    return message
