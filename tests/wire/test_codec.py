"""Dataclasses to JSON and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from autotune.wire.codec import FormatError, parse, to_json


@dataclass(frozen=True)
class Inner:
    name: Literal["a", "b"]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    share: float
    inner: Inner
    several: list[Inner]
    perhaps: Inner | None = None


MADE = Outer(0.5, Inner("a", (1, 2)), [Inner("b")], None)


def test_what_was_made_json_is_read_back_equal() -> None:
    assert parse(Outer, to_json(MADE)) == MADE


def test_tuples_are_tuples_again() -> None:
    assert parse(Inner, {"name": "a", "sizes": [3]}).sizes == (3,)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([], "not an object"),
        ({"name": "a"}, "sizes"),
        ({"name": "a", "sizes": [], "more": 1}, "more"),
        ({"name": "c", "sizes": []}, "name"),
        ({"name": "a", "sizes": [1.5]}, "sizes"),
        ({"name": "a", "sizes": [True]}, "sizes"),
        ({"name": None, "sizes": []}, "name"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_the_field(body: Any, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse(Inner, body)


def test_where_it_is_not_strict_defaults_may_be_missing_and_others_be_there() -> None:
    assert parse(Inner, {"name": "a", "more": 1}, strict=False) == Inner("a")
    with pytest.raises(FormatError, match="name"):
        parse(Inner, {"sizes": []}, strict=False)
    with pytest.raises(FormatError, match="sizes"):
        parse(Inner, {"name": "a", "sizes": "1"}, strict=False)
