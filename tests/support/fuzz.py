"""Wrong input for every parser, which must accept it or refuse it in one line.

`PARSERS` has a function for each parser. It takes hypothesis' `data`, and raises if the parser did
anything else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from cyclopts import CycloptsError
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from autotune.commands import app as cli
from autotune.commands.exits import one_line
from autotune.errors import UsageError
from autotune.measure.testbed.recording import Recording
from autotune.result.best import Best
from autotune.result.files import MANIFEST
from autotune.result.folder import manifest
from autotune.result.folder.journal_file import repair
from autotune.space.engines import state_bytes
from autotune.space.options import FLAGS, Options
from autotune.space.workload import parse_global_batch
from autotune.units import parse_bytes, parse_duration_s, parse_ints, parse_share
from autotune.wire import messages as wire
from autotune.wire.messages import WireError
from tests.support import exported, recorded
from tests.support.messages import TYPES, any_of
from tests.support.records import record, space
from tests.support.studies import Killed, Run, killing, open_journal

Case = Callable[[st.DataObject], None]

_VALUES = (
    "30m", "-5m", "1e9h", "80%", "0", "24GiB", "1:64", "64:1", "1,2,,3", "1:9:0", "none", "full",
    "auto", "cpu", "fsdp", "all,none", "65536tok", "-1", "99999999999999999999", "nan", "inf", "",
    " ", "ä", "\u0000", "--", "=", "gpt", "width=64", "frontier", "tokens_per_s", "no/such/folder",
)  # fmt: skip
_FLAGS = (
    "--budget", "--ceiling", "--host-ceiling", "--capacity", "--device", "--world-size", "--model",
    "--gpt", "--depth", "--seq-len", "--micro-batch", "--engine", "--zero",
    "--offload", "--checkpointing", "--dtype", "--optimizer", "--global-batch", "--objective",
    "--sampler", "--seed", "--trials", "--finals", "--out", "--dry-run", "--allow-busy",
    "--resume", "--accept-changed", "--no-such-flag", "-x",
)  # fmt: skip
_NASTY = ("", "0", "nan", "1e999", "9" * 400, "9" * 5000, "\x00", "\r", "\n", ",", '"', "[" * 2000)
_TEXT = st.text(max_size=12) | st.sampled_from(_VALUES)
_NUMBERS = st.text(alphabet="0123456789.,:%-+ehmskgibto ½", max_size=12)
_LINE = st.lists(
    st.sampled_from(_FLAGS) | _TEXT | st.builds("{}={}".format, st.sampled_from(_FLAGS), _TEXT),
    max_size=6,
)


def refused_in_one_line(parse: Callable[[], object], *errors: type[Exception]) -> str:
    """The refusal of `parse`; empty if it accepts its input. Raises all other errors."""
    try:
        parse()
    except errors as error:
        known = isinstance(error, UsageError | CycloptsError)
        message = one_line(error) if known else str(error)  # type: ignore[arg-type]
        assert message, "refused without a word"
        assert len(message.splitlines()) == 1, message
        return message
    return ""


def options(data: st.DataObject) -> None:
    """One flag's text."""
    parsers: tuple[Callable[[str, str], object], ...] = (
        parse_duration_s, parse_share, parse_bytes, parse_ints, parse_global_batch,
        FLAGS["checkpointing"].read,
    )  # fmt: skip
    parse, text = data.draw(st.sampled_from(parsers)), data.draw(_TEXT | _NUMBERS | st.text())
    parsed: list[object] = []
    refused_in_one_line(lambda: parsed.append(parse(text, "--flag")), UsageError)
    assert all(parsed)


def command_line(data: st.DataObject) -> None:
    argv = data.draw(_LINE)

    def parse() -> None:
        cli.parsed(argv)

    refused_in_one_line(parse, UsageError, CycloptsError)


def messages(data: st.DataObject) -> None:
    """One message of the channel, decoded faithfully or refused."""
    sent = wire.encode(data.draw(any_of(data.draw(st.sampled_from(TYPES)))))
    received = data.draw(st.binary(max_size=80) | _changed_json(sent) | _changed(sent))
    arrived: list[wire.Message] = []
    if not refused_in_one_line(lambda: arrived.append(wire.decode(received)), WireError):
        read, again = json.loads(received), json.loads(wire.encode(arrived[0]))
        assert (read["type"], read["body"].keys()) == (again["type"], again["body"].keys())


def best_files(data: st.DataObject) -> None:
    whole = _best()
    path = _write("best.json", data.draw(_changed_json(whole) | _changed(whole)))
    refused_in_one_line(lambda: Best.read(path), UsageError)


def manifests(data: st.DataObject) -> None:
    whole = _manifest()
    path = _write(MANIFEST, data.draw(_changed_json(whole) | _changed(whole) | st.binary()))
    refused_in_one_line(lambda: manifest.read(path.parent).asked(), UsageError)


def journals(data: st.DataObject) -> None:
    whole = _journal()
    place, byte = st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=1)
    one_byte = st.builds(lambda at, new: whole[:at] + new + whole[at + 1 :], place, byte)
    path = _write("optuna.log", data.draw(one_byte | _changed(whole) | st.binary(max_size=100)))
    before = path.read_bytes()
    if refused_in_one_line(lambda: repair(path), UsageError):
        assert path.read_bytes() == before
    else:
        assert before.startswith(path.read_bytes())
        assert repair(path) == 0
    refused_in_one_line(lambda: open_journal(path.parent, space()), UsageError)


def grids(data: st.DataObject) -> None:
    """What can be read can also be searched."""
    whole = _grid()
    head, _, rows = whole.removeprefix(b"# ").partition(b"\n")
    header = _changed_json(head).map(lambda changed: b"# " + changed + b"\n" + rows)
    path = _write("grid.csv", data.draw(
        header | _changed_cell(whole) | _changed(whole) | st.binary(max_size=100)
    ))  # fmt: skip

    def search() -> None:
        found = Recording(path).space(Options())
        assert state_bytes(found.workload, found.candidates[0]).device > 0

    refused_in_one_line(search, UsageError)


PARSERS: dict[str, Case] = {
    "options": options, "command line": command_line, "wire": messages, "best.json": best_files,
    "manifest.json": manifests, "journal repair": journals, "grid CSV": grids,
}  # fmt: skip


def fuzz(name: str, cases: int, start: int = 0) -> int:
    """Try so many cases, drawn from `start`; returns their number. Raises what a parser raised."""
    tried = 0

    @seed(start)
    @settings(max_examples=cases, deadline=None, database=None, derandomize=False)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        nonlocal tried
        tried += 1
        PARSERS[name](data)

    run()
    return tried


@cache
def _best() -> bytes:
    made = space()
    records = [record(candidate, number=i) for i, candidate in enumerate(made.candidates)]
    return json.dumps(exported.best(records, made).to_json()).encode()


@cache
def _manifest() -> bytes:
    body = {
        "schema_version": 1, "argv": ["--budget", "30m"], "folder": "study",
        "options": {"budget_s": 90.0, "depth": [1, 2], "zero": None, "seed": 0,
                    "global_batch": {"amount": 256, "unit": "samples"}, "allow_busy": False},
        "space": space().manifest(), "fingerprint": {"kind": "cpu"},
    }  # fmt: skip
    return json.dumps(body).encode()


@cache
def _journal() -> bytes:
    folder = _folder() / "killed"
    with suppress(Killed):
        Run(folder, killing(6), space(), sampler="grid")
    return (folder / "optuna.log").read_bytes()


@cache
def _grid() -> bytes:
    rows = [recorded.row(candidate) for candidate in space().candidates[:3]]
    return recorded.write(_folder() / "whole.csv", rows).read_bytes()


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="autotune-fuzz-")
    _KEPT.append(folder)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _write(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _changed(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with some of its bytes replaced, or parts of it left out or said twice."""
    place = st.integers(0, len(whole))
    edit = st.tuples(place, place, st.binary(max_size=4))

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = whole
        for start, end, new in edits:
            first, last = sorted((start, min(end, start + 40)))
            data = data[:first] + new + data[last:]
        return data

    return st.lists(edit, min_size=1, max_size=4).map(apply) | place.map(lambda end: whole[:end])


def _changed_cell(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with one of its cells replaced."""
    cells = whole.split(b",")
    texts = (st.sampled_from(_NASTY) | st.text(max_size=5)).map(
        lambda text: text.encode(errors="replace")
    )
    place = st.integers(0, len(cells) - 1)
    return st.builds(
        lambda at, text: b",".join([*cells[:at], text, *cells[at + 1 :]]), place, texts
    )


def _changed_json(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with one of its values replaced by another JSON value, or left out."""
    paths = list(_paths(json.loads(whole), ()))
    text = st.text(max_size=5) | st.sampled_from(_NASTY)
    values = st.none() | st.booleans() | st.integers() | st.floats() | text
    other = values | st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=3), values)

    def apply(change: tuple[tuple[Any, ...], Any, bool]) -> bytes:
        path, value, drop = change
        document = json.loads(whole)
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if drop:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        return json.dumps(document).encode()

    return st.tuples(st.sampled_from(paths), other, st.booleans()).map(apply)


def _paths(value: Any, path: tuple[Any, ...]) -> Any:
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))
