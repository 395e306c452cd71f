"""What comes after an attempt at a probe."""

from __future__ import annotations

from itertools import product

import pytest

from autotune.study.attempts import Next, after

CASES = ("warm_memory", "over", "disturbed", "others_memory")
TRANSITIONS: dict[str, Next] = {
    # What is listed is so, and nothing else; a row stands for all that do not name more.
    "": Next.END,
    "disturbed": Next.AGAIN,
    "disturbed others_memory": Next.FRESH,
    "others_memory": Next.END,
    "over": Next.END,
    "over disturbed": Next.END,
    "over disturbed others_memory": Next.END,
    "over others_memory": Next.END,
}


@pytest.mark.parametrize(("seen", "step"), TRANSITIONS.items(), ids=lambda each: str(each) or "-")
def test_an_attempt_is_followed_by(seen: str, step: Next) -> None:
    so = {name: name in seen.split() for name in CASES}
    assert after(**so) is step
    # A memory verdict of a warm group is tried once in a fresh one, whatever else is so.
    assert after(**so | {"warm_memory": True}) is Next.FRESH


def test_the_table_has_every_case() -> None:
    every = {" ".join(n for n, so in zip(CASES[1:], each, strict=True) if so)
             for each in product((False, True), repeat=3)}  # fmt: skip
    assert set(TRANSITIONS) == every
