"""The socket that ranks dial: who is let in, and what one that misbehaves can do to a group."""

from __future__ import annotations

import ast
import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, wait
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import autotune
import probes
from autotune.measure.runner import channel, local
from autotune.measure.runner.channel import Channel
from autotune.space.outcome import Verdict
from autotune.wire import stream
from autotune.wire.budget import VirtualTime
from autotune.wire.dial import Dial
from autotune.wire.messages import Message, WireError, encode
from autotune.wire.ranks import Hello
from autotune.wire.stream import Stream
from tests.support import defaults
from tests.support.pools import RULE, Started, ranks
from tests.support.programs import QUICK_RANK

SILENT = [sys.executable, "-c", "import time; time.sleep(3600)"]
REFUSALS = (AssertionError, AuthenticationError, EOFError, OSError, ValueError)
TIMEOUT_S = channel.PEER_TIMEOUT_S


@pytest.fixture
def open_channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.close()


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Two ranks that answer within milliseconds."""
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)
    monkeypatch.setattr(channel, "PEER_TIMEOUT_S", 1)
    started = Started(tmp_path, world_size=2)
    yield started
    started.pool.close()


def dialled(dial: Dial) -> Stream:
    return stream.dial(dial.host, dial.port, bytes.fromhex(dial.key))


def accepted(listening: Channel, intrude: Callable[[Dial], object]) -> channel.Peer | None:
    """What `listening` makes of a peer that does `intrude` in a thread."""
    dial = listening.dial(0, child=True)
    intruder = in_thread(lambda dial, _: intrude(dial), dial, 0)
    intruder.join()
    wait([listening], 0.2)  # type: ignore[list-item]
    return listening.accept()


# Who is let in.


def test_the_channel_is_on_loopback(open_channel: Channel) -> None:
    listening = [c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN"]
    dial = open_channel.dial(0, child=True)
    assert ("127.0.0.1", dial.port) in listening
    assert {address.ip for address in listening if address.port == dial.port} == {"127.0.0.1"}


def without_key(dial: Dial) -> None:
    stream.dial(dial.host, dial.port, b"a guess")


def with_pickle(dial: Dial) -> None:
    with Client((dial.host, dial.port), authkey=b"of Python's own") as connection:
        connection.recv_bytes()


def with_much(dial: Dial) -> None:
    with socket.create_connection((dial.host, dial.port)) as raw:
        raw.sendall(struct.pack("!I", 2**30) + b"x" * 1000)
        raw.recv(1000)


@pytest.mark.parametrize("intrude", [without_key, with_pickle, with_much])
def test_a_wrong_key_is_refused(open_channel: Channel, intrude: Callable[[Dial], None]) -> None:
    assert accepted(open_channel, intrude) is None


def says_nothing(raw: socket.socket) -> None:
    raw.recv(1000)
    raw.recv(1000)  # waits until the study hangs up


def dribbles(raw: socket.socket) -> None:
    raw.sendall(struct.pack("!I", 60))
    hung_up = False
    while not hung_up:
        raw.sendall(b"x")
        raw.settimeout(0.2)
        try:
            hung_up = not raw.recv(1000)
        except TimeoutError:
            continue


@pytest.mark.parametrize("what", [says_nothing, dribbles])
def test_a_peer_that_does_not_go_on_is_dropped_in_time(
    open_channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(channel, "PEER_TIMEOUT_S", 1)

    def intrude(dial: Dial) -> None:
        with socket.create_connection((dial.host, dial.port)) as raw:
            what(raw)

    began = time.monotonic()
    assert accepted(open_channel, intrude) is None
    assert time.monotonic() - began < 5  # it would be 200 reads of up to a second


@pytest.mark.parametrize(
    "data", [pickle.dumps({"a": 1}), b"", b"\xff", b"[" * 10_000, encode(Hello(0, 1, "x"))[:-3]]
)
def test_what_is_no_message_is_refused_at_once(open_channel: Channel, data: bytes) -> None:
    peer = accepted(open_channel, lambda dial: dialled(dial).send(data))
    assert peer is not None
    with pytest.raises(WireError):
        peer.receive()
    peer.close()


def test_a_message_above_the_limit_is_refused_by_its_announcement(open_channel: Channel) -> None:
    def announce(dial: Dial) -> None:
        with closing(dialled(dial)) as connection:
            connection.send(encode(Hello(0, 1, "x")))
            os.write(connection.fileno(), struct.pack("!I", 2**30))

    peer = accepted(open_channel, announce)
    assert peer is not None
    assert peer.receive() == Hello(0, 1, "x")
    before = psutil.Process().memory_info().rss
    with pytest.raises(WireError):
        list(peer.arrived())
    assert psutil.Process().memory_info().rss - before < 2**24
    peer.close()


def test_a_peer_is_stuck_within_one_message_and_not_between_many(
    open_channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, came = VirtualTime(), [Hello(0, pid, "x") for pid in range(3)]
    frames = [struct.pack("!I", len(data)) + data for data in map(encode, came)]
    connections: list[Stream] = []

    def greet(dial: Dial) -> None:
        connections.append(dialled(dial))
        connections[0].send(encode(came[0]))

    peer = accepted(open_channel, greet)
    assert peer is not None
    assert peer.receive() == came[0]
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=clock))

    def after_most_of_the_timeout(data: bytes) -> list[Message]:
        clock.advance(0.6 * TIMEOUT_S)
        os.write(connections[0].fileno(), data)
        wait([peer], 5)  # type: ignore[list-item]
        return list(peer.arrived())

    assert after_most_of_the_timeout(frames[1][:9]) == []
    assert after_most_of_the_timeout(frames[1][9:] + frames[2][:9]) == [came[1]]
    assert after_most_of_the_timeout(frames[2][9:10]) == []  # each part of a message in time
    with pytest.raises(WireError, match="does not go on"):
        after_most_of_the_timeout(frames[2][10:11])
    peer.close()


# What it does to a group.


def silent(dial: Dial, pid: int) -> None:
    with socket.create_connection((dial.host, dial.port)) as raw:
        says_nothing(raw)


def keyed_with_pickle(dial: Dial, pid: int) -> None:
    with closing(dialled(dial)) as connection:
        connection.send(pickle.dumps({"rank": 0}))
        connection.receive(1000)


def stranger(dial: Dial, pid: int) -> None:
    claim(replace(dial, token="a guess"), pid)


def claim(dial: Dial, pid: int) -> None:
    """Say to be rank 0, and wait for what the study answers; EOFError if it hangs up."""
    with closing(dialled(dial)) as connection:
        connection.send(encode(Hello(0, pid, "here", dial.token)))
        connection.receive(1000)


@pytest.fixture
def intrude(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Dial, int], None]], None]:
    """Has what it is given done in a thread, once rank 0 is started and has not dialled yet."""
    start_rank = local.start_rank

    def with_intruder(what: Callable[[Dial, int], None]) -> None:
        def start(dial: Dial, log: Path, environment: dict[str, str]) -> local.LocalProcess:
            process = start_rank(dial, log, environment)
            if dial.rank == 0:
                in_thread(what, dial, process.pid)
            return process

        monkeypatch.setattr(local, "start_rank", start)

    return with_intruder


def in_thread(what: Callable[[Dial, int], object], dial: Dial, pid: int) -> threading.Thread:
    def attempt() -> None:
        with suppress(*REFUSALS):
            what(dial, pid)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("who", [silent, keyed_with_pickle, stranger])
def test_a_group_starts_and_works_beside_an_intruder(
    group: Started,
    intrude: Callable[[Callable[[Dial, int], None]], None],
    who: Callable[[Dial, int], None],
) -> None:
    intrude(who)
    assert group.run().verdict is Verdict.OK


def test_nobody_takes_the_place_of_a_rank_that_has_dialled(
    group: Started,
    intrude: Callable[[Callable[[Dial, int], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    refused = threading.Event()
    late = tmp_path / "rank 1 may dial"
    wait = (
        "import os, sys, time\n"
        "dial = sys.stdin.readline()\n"
        f"while '\"rank\":1' in dial and not os.path.exists({str(late)!r}): time.sleep(0.01)\n"
        "read, write = os.pipe(); os.write(write, dial.encode()); os.dup2(read, 0)\n"
        f"os.execv({QUICK_RANK[0]!r}, {QUICK_RANK!r})"
    )
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", wait])

    def second(dial: Dial, pid: int) -> None:
        while not group.phases:
            time.sleep(0.01)
        try:
            claim(dial, pid)
        except REFUSALS:
            refused.set()
        late.touch()

    intrude(second)
    assert group.run().verdict is Verdict.OK
    assert refused.is_set()


def test_a_silent_peer_moves_a_deadline_by_no_more_than_its_timeout(
    group: Started,
    intrude: Callable[[Callable[[Dial, int], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert TIMEOUT_S <= 5
    monkeypatch.setattr(local, "WORKER", SILENT)
    intrude(silent)
    began = time.monotonic()
    result = group.pool.run(
        defaults.job(rule=RULE),
        began + 0.5,
    )
    assert result.verdict is Verdict.SKIPPED
    assert time.monotonic() - began < 0.5 + 1 + 3  # the deadline, the timeout, ending the ranks


def test_the_key_is_in_no_command_line_environment_or_file(
    group: Started, intrude: Callable[[Callable[[Dial, int], None]], None], tmp_path: Path
) -> None:
    keys: list[str] = []
    intrude(lambda dial, pid: keys.append(dial.key))
    assert group.run().verdict is Verdict.OK
    family = [psutil.Process(), *ranks()]
    assert len(family) == 5  # this one, two ranks and their guards
    seen = [Path(f"/proc/{p.pid}/{name}") for p in family for name in ("cmdline", "environ")]
    seen += [path for path in tmp_path.rglob("*") if path.is_file()]
    (key,) = keys
    assert not [path for path in seen if key.encode() in path.read_bytes()]
    assert not [path for path in seen if bytes.fromhex(key) in path.read_bytes()]


# What the source does not do.

SOURCES = sorted(
    path for package in (autotune, probes) for path in Path(package.__path__[0]).rglob("*.py")
)
RUNS_WHAT_IT_READS = {
    "pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib",
    "eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "torch.load",
}  # fmt: skip


WHERE_THE_USER_SAYS_SO = {"self.trust_remote_code", "trusted"}
"""What may stand for the user's word, as `ast.unparse` writes it."""


def _trusts(keyword: ast.keyword) -> bool:
    said = ast.unparse(keyword.value)
    return keyword.arg == "trust_remote_code" and said not in WHERE_THE_USER_SAYS_SO


def dangers(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in RUNS_WHAT_IT_READS)
            case ast.ImportFrom(module=module) if module in RUNS_WHAT_IT_READS:
                yield module
            case ast.Call(func=func, keywords=keywords):
                name = ast.unparse(func)
                # The methods of a Connection that pickle; a socket has both names too.
                pickles = name.endswith((".recv", "connection.send"))
                pickles &= not name.endswith("_socket.recv")
                if name in RUNS_WHAT_IT_READS or pickles:
                    yield name
                yield from (k.arg for k in keywords if k.arg and (k.arg == "shell" or _trusts(k)))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_source_runs_what_it_reads(path: Path) -> None:
    assert not list(dangers(path))


def test_the_check_of_the_sources_sees_what_it_looks_for(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import pickle\nfrom marshal import loads\nos.system('a')\neval('b')\n"
        "subprocess.run('c', shell=True)\nself._connection.send(d)\npeer.recv()\n"
        "AutoModel.from_pretrained('e', trust_remote_code=True)\n"
    )
    assert sorted(dangers(source)) == [
        "eval", "marshal", "os.system", "peer.recv", "pickle", "self._connection.send", "shell",
        "trust_remote_code",
    ]  # fmt: skip
