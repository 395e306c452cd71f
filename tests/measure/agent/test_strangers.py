"""Who may speak with a study that several hosts reach, and what others can do to it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from autotune.measure.runner import channel, local
from autotune.measure.runner.channel import Channel, Peer
from autotune.measure.runner.identity import identity
from autotune.space.outcome import Verdict
from autotune.wire import stream
from autotune.wire.dial import Dial
from autotune.wire.messages import MAX_MESSAGE_BYTES, encode
from autotune.wire.ranks import Hello
from autotune.wire.stream import StrangerError, Stream, TamperedError
from tests.support.pools import Started
from tests.support.programs import QUICK_RANK

HELLO = Hello(0, 1, "a host")


@pytest.fixture
def secure() -> Iterator[Channel]:
    made = Channel(identity=identity())
    yield made
    made.close()


def dialled(dial: Dial, *, port: int | None = None) -> Stream:
    return stream.dial(dial.host, port or dial.port, bytes.fromhex(dial.key), dial.certificate)


def came(listening: Channel, limit_s: float = 10.0) -> Peer | None:
    wait([listening], limit_s)  # type: ignore[list-item]
    return listening.accept()


@contextmanager
def introduced(listening: Channel, port: int | None = None) -> Iterator[tuple[Stream, Peer]]:
    """A rank that has said `HELLO`, by that port, and its peer, which has not heard it yet."""
    with closing(dialled(listening.dial(0, child=False), port=port)) as rank:
        rank.send(encode(HELLO))
        peer = came(listening)
        assert peer is not None
        yield rank, peer
        peer.close()


class Between:
    """Hands bytes on in both directions, and keeps those of who dials; may change one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.heard = b""
        self.change_next = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._hand, args=(far, near), daemon=True).start()
            while data := near.recv(2**16):
                self.heard += data
                if self.change_next:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                far.sendall(data)
            far.close()

    def _hand(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)


def test_what_is_said_between_hosts_is_in_tls_1_3_and_nobody_reads_it(secure: Channel) -> None:
    dial = secure.dial(0, child=False)
    between = Between(dial.port)
    with introduced(secure, between.port) as (rank, peer):
        assert peer.receive() == HELLO
        assert rank._tls is not None
        assert rank._tls.version() == "TLSv1.3"
    assert b"Hello" not in between.heard
    assert bytes.fromhex(dial.key) not in between.heard


def test_who_dials_trusts_no_other_certificate(secure: Channel) -> None:
    dial = secure.dial(0, child=False)
    other = identity()
    with pytest.raises(ssl.SSLError):
        stream.dial(dial.host, dial.port, bytes.fromhex(dial.key), other.certificate)


def test_who_dials_learns_that_the_other_side_does_not_know_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connected, _ = listener.accept()
            with closing(Stream(connected)) as false:
                false.send(bytes(32))
                false.receive(64)
                false.send(bytes(32))

        threading.Thread(target=pretend, daemon=True).start()
        host, port = listener.getsockname()
        with pytest.raises(StrangerError):
            stream.dial(host, port, b"the key")


@pytest.mark.parametrize("tls", [True, False])
def test_a_handshake_that_is_replayed_opens_nothing(tls: bool) -> None:
    listening = Channel(identity=identity() if tls else None)
    dial = listening.dial(0, child=False)
    between = Between(dial.port)
    with introduced(listening, between.port):
        pass
    with socket.create_connection((dial.host, dial.port)) as raw:
        raw.settimeout(channel.PEER_TIMEOUT_S + 5)
        raw.sendall(between.heard)
        with suppress(ConnectionError):
            while raw.recv(2**16):
                pass
    assert came(listening, 0.2) is None
    listening.close()


def test_a_byte_that_was_changed_ends_the_connection_and_is_no_message(secure: Channel) -> None:
    between = Between(secure.address[1])
    with introduced(secure, between.port) as (rank, peer):
        peer.receive()
        between.change_next = True
        rank.send(encode(HELLO))
        wait([peer], 10)  # type: ignore[list-item]
        with pytest.raises(TamperedError):
            list(peer.arrived())


def without_key(dial: Dial) -> None:
    stream.dial(dial.host, dial.port, b"a guess", dial.certificate)


def in_plain_text(dial: Dial) -> None:
    stream.dial(dial.host, dial.port, bytes.fromhex(dial.key))


@pytest.mark.parametrize("intrude", [without_key, in_plain_text])
def test_the_key_alone_or_the_certificate_alone_opens_nothing(
    secure: Channel, intrude: Callable[[Dial], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "AGAIN_S", 0.0)
    with pytest.raises((OSError, EOFError, ValueError)):
        intrude(secure.dial(0, child=False))
    assert came(secure, 0.2) is None


def scan(port: int) -> None:
    """A port scan, and more of the silent than the channel lets be in their handshake."""
    silent = []
    for _ in range(2 * channel.MOST_DIALLING):
        socket.create_connection(("127.0.0.1", port)).close()
        silent.append(socket.create_connection(("127.0.0.1", port)))
        silent[-1].sendall(struct.pack("!I", 60))
    time.sleep(0)
    for each in silent:
        each.close()


@pytest.mark.slow
def test_a_port_scan_ends_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)
    group = Started(tmp_path, world_size=2)
    _, port = group.pool._channel.address
    assert group.run().verdict is Verdict.OK
    scan(port)
    assert group.run().verdict is Verdict.OK
    scan(port)
    assert group.run(fresh=True).verdict is Verdict.OK  # new ranks dial beside the rest of it
    group.pool.close()


def test_a_message_of_the_largest_size_arrives_whole(secure: Channel) -> None:
    large = encode(Hello(0, 1, "x" * (MAX_MESSAGE_BYTES - 200)))
    with introduced(secure) as (rank, peer):
        assert peer.receive() == HELLO
        sender = threading.Thread(target=rank.send, args=(large,))
        sender.start()
        found: list[object] = []
        while not found:
            wait([peer], 10)  # type: ignore[list-item]
            found += peer.arrived()
        sender.join()
        assert len(str(found[0])) > MAX_MESSAGE_BYTES - 200
