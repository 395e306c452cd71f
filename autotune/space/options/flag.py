"""The form of an option: its flag, its help and the function that reads its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from autotune.space.models.defaults import Lora
from autotune.units import parse_name

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """The form and the help of an option."""

    name: str
    help: str
    metavar: str | None
    read: Callable[[str, str], Any]
    """Makes the value from text and flag. Raises `UsageError`."""
    type: Any = str
    """Its type for `--help`: str, bool for a switch, or a Literal of its words."""
    default: str | None = None
    """The text that `--help` shows; None for "not given"."""
    key: str | None = None
    """Its name among all options, if the field of its group has another name."""


def option(
    name: str,
    read: Callable[[str, str], T],
    metavar: str | None,
    text: str,
    *,
    silently: str | None = None,
    **more: Any,
) -> Any:
    """A field of a group, None unless it has a default, which `text` may state (`silently`)."""
    flag = Flag(name=name, help=text, metavar=metavar, read=read, **more)
    given = silently if flag.default is None else flag.default
    return field(default=None if given is None else read(given, name), metadata={"flag": flag})


def switch(name: str, text: str) -> Any:
    """A field that is False until its flag is given."""
    return option(name, _yes, None, text, type=bool, silently="false")


def word(name: str, known: Any, text: str, default: str | None = None) -> Any:
    """A field with one of the words of a Literal type, or of a tuple of them."""
    words = known if isinstance(known, tuple) else get_args(known)
    read = partial(parse_name, known=words)
    return option(name, read, None, text, type=Literal.__getitem__(words), default=default)


def flags_of(group: Any) -> dict[str, tuple[str, Flag]]:
    """The options of a group by their keys: the name of the field, and its flag."""
    found = {each.name: each.metadata["flag"] for each in fields(group) if each.metadata}
    return {flag.key or name: (name, flag) for name, flag in found.items()}


def as_it_is(text: str, flag: str) -> str:
    return text


def checked(text: str, flag: str, parse: Callable[[str, str], object]) -> str:
    parse(text, flag)
    return text


def as_path(text: str, flag: str) -> Path:
    return Path(text)


def listed(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


def _yes(text: str, flag: str) -> bool:
    return parse_name(text, flag, known=("true", "false")) == "true"


def text_of(value: Any) -> str:
    """A JSON `value` as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")  # without an exponent
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ",".join(map(text_of, value))
    match value:
        case [[int(), int()], *_]:  # sizes of images
            return ",".join("x".join(map(str, size)) for size in value)
        case {"amount": amount, "unit": "tokens", **rest} if not rest:
            return f"{amount}tok"
        case {"amount": amount, "unit": "samples", **rest} if not rest:
            return str(amount)
        case {"rank": int(), "targets": list(targets)}:
            return str(Lora(**{**value, "targets": tuple(targets)}))
    return str(value)
