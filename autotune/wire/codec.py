"""Dataclasses to JSON and back: exactly the declared fields and types, or a `FormatError`."""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class FormatError(ValueError):
    """JSON that is not what its dataclass declares."""


def to_json(made: Any) -> dict[str, Any]:
    """The dataclass `made` as the JSON types that reading it back would give."""
    body: dict[str, Any] = json.loads(json.dumps(asdict(made)))
    return body


def parse(cls: type[T], body: Any, *, strict: bool = True) -> T:
    """The dataclass that `asdict` made the JSON `body` of; lists become tuples where those are
    declared.

    Where it is not `strict`, fields that `cls` does not know are passed over, and those that have
    a default may be missing.

    Raises:
        FormatError: a field that is missing, unknown or of another type.
    """
    if not isinstance(body, dict):
        raise FormatError(f"{cls.__name__}: body is not an object")
    declared: Any = cls
    hints = _hints(declared)
    odd = body.keys() ^ hints.keys()
    if not strict:
        odd -= (body.keys() - hints.keys()) | _optional(declared)
    if odd:
        names = ", ".join(map(ascii, sorted(odd)))
        raise FormatError(f"{cls.__name__}: missing or unknown fields {names:.200}")
    known = {name: hint for name, hint in hints.items() if name in body}
    values = {name: _value(cls, name, hint, body[name], strict) for name, hint in known.items()}
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _optional(cls: Any) -> frozenset[str]:
    """Names of the fields that have a default."""
    return frozenset(
        field.name
        for field in fields(cls)
        if field.default is not MISSING or field.default_factory is not MISSING
    )


def _value(cls: type[Any], name: str, hint: Any, value: Any, strict: bool) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value  # JSON already
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (hint,) = [arg for arg in args if arg is not type(None)]
        return _value(cls, name, hint, value, strict)
    if is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, value, strict=strict)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_value(cls, name, args[0], item, strict) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _value(cls, name, args[1], item, strict) for key, item in value.items()}
    return _scalar(cls, name, hint, value)


def _scalar(cls: type[Any], name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        if isinstance(value, str) and value in get_args(hint):
            return value
    elif get_origin(hint) is not None:
        pass  # a list or dict was declared, and this is none
    elif issubclass(hint, StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
    elif hint is float and type(value) is int and abs(value) < 2**1023:  # float() cannot overflow
        return float(value)
    elif type(value) is hint:
        return value
    raise FormatError(f"{cls.__name__}.{name}: {value!r:.80} is not a {hint}")
