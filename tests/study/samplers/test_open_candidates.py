"""What may still be proposed."""

from __future__ import annotations

import pytest

from autotune.study.samplers.open_candidates import OpenCandidates
from tests.support.records import space

SPACE = space(micro_batch=(1, 8))
FIRST, *REST = SPACE.candidates


@pytest.fixture
def opened() -> OpenCandidates:
    return OpenCandidates(SPACE)


def test_all_are_open_at_first(opened: OpenCandidates) -> None:
    assert list(opened) == list(SPACE.candidates)


def test_what_is_closed_comes_back_only_if_it_is_reopened(opened: OpenCandidates) -> None:
    opened.close(FIRST)
    assert list(opened) == REST
    opened.reopen(FIRST)
    assert list(opened) == list(SPACE.candidates)


def test_a_build_is_kept_to_while_one_of_it_is_open(opened: OpenCandidates) -> None:
    mine = [c for c in SPACE.candidates if c.build == FIRST.build]
    assert [SPACE.candidates[i] for i in opened.places(FIRST.build)] == mine
    for candidate in mine:
        opened.close(candidate)
    assert not opened.has(FIRST.build)
    others = [c for c in SPACE.candidates if c.build != FIRST.build]
    assert [SPACE.candidates[i] for i in opened.places(FIRST.build)] == others


def test_what_is_avoided_comes_when_nothing_else_is_open(opened: OpenCandidates) -> None:
    opened.avoid([FIRST])
    assert opened.avoids(FIRST)
    assert [SPACE.candidates[i] for i in opened.places()] == REST
    for candidate in REST:
        opened.close(candidate)
    assert not opened.avoids(FIRST)
    assert [SPACE.candidates[i] for i in opened.places()] == [FIRST]
