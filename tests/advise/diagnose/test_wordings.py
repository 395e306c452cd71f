"""The corpus: messages from libraries' sources, and the expected reading of each.

A row of wordings.jsonl has the text, its kind (null without an error), its numbers, and its
source: file and version.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.advise.diagnose import LogReader
from autotune.advise.diagnose.context import Context
from autotune.advise.diagnose.events import Event
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.memory import SPEAKERS
from autotune.advise.diagnose.reading import ANCHORS, FOREIGN
from autotune.advise.diagnose.wordings import FIRST, LAST
from tests.support.logs import wrapped

CORPUS = [
    json.loads(line)
    for line in (Path(__file__).parent / "wordings.jsonl").read_text(encoding="utf-8").splitlines()
]
NUMBERS = {"reserved_unallocated": "unallocated", "others": "others_bytes"}
"""Where the corpus calls a field otherwise."""


def events(data: bytes) -> list[Event]:
    reader = LogReader("log", Context())
    reader.read(io.BytesIO(data))
    return reader.finish()


def check(row: dict[str, Any], data: bytes) -> None:
    found = events(data)
    kinds = {None if row["kind"] is None else Kind[row["kind"].upper()]}
    if row["kind"] is None:
        assert found == []
        return
    first = next((e for e in found if e.kind in kinds), None)
    assert first is not None, [e.kind for e in found]
    if not first.kind.is_oom:
        assert not any(each.kind.is_oom for each in found)
    for name, value in row["numbers"].items():
        if name == "rank":
            assert first.ranks == (value,)
        else:
            said = getattr(first.amounts, NUMBERS.get(name, name))
            assert said == value if value is None else said == pytest.approx(value, abs=2), name


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    ours = [
        row for row in CORPUS if row["kind"] in ("device", "host", "shared", "killed", "batch")
    ]
    assert len(ours) >= 60
    assert len(CORPUS) - len(ours) >= 20
    assert all(row["source"] for row in CORPUS)


@pytest.mark.parametrize("row", CORPUS, ids=lambda row: row["text"][:40])
def test_a_wording_is_read_as_what_it_is(row: dict[str, Any]) -> None:
    check(row, row["text"].encode() + b"\n")


OWN_PREFIX = ("[", "E1", " ", "node", "host", "kernel", "(raylet")
"""How lines begin that have a launcher's words already."""
BARE = [
    row for row in CORPUS if "\n" not in row["text"] and not row["text"].startswith(OWN_PREFIX)
]


@pytest.mark.parametrize("row", BARE, ids=lambda row: row["text"][:40])
def test_a_wording_is_read_behind_what_launchers_write(row: dict[str, Any]) -> None:
    numbers = {name: value for name, value in row["numbers"].items() if name != "rank"}
    for wrap in wrapped.values():
        check({**row, "numbers": numbers}, wrap(row["text"]))


@pytest.mark.parametrize("row", [r for r in CORPUS if r["kind"]], ids=lambda row: row["text"][:40])
def test_what_has_a_wording_has_an_anchor(row: dict[str, Any]) -> None:
    assert any(anchor in row["text"].encode() for anchor in (*ANCHORS, *FOREIGN))


def test_every_wording_has_its_own_name_and_says_its_source() -> None:
    names = [wording.name for wording in (*FIRST, *SPEAKERS, *LAST)]
    assert len(names) == len(set(names))
    assert all(wording.source for wording in (*FIRST, *SPEAKERS, *LAST))
