"""The socket that ranks dial: one interface, a random key, JSON messages of bounded size.

Each connection is authenticated in a thread of its own, so the study waits for no peer.

A token identifies a rank, not its process id. If too many peers dial, unauthenticated ones of the
host with the most are cut off. A rank that was cut off dials again.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from autotune.wire.dial import Dial
from autotune.wire.messages import MAX_MESSAGE_BYTES, Message, WireError, decode, encode
from autotune.wire.stream import FrameError, Stream, answer, watch

PEER_TIMEOUT_S = 5
"""A peer that stops within a handshake or a message is dropped after this time."""
MOST_DIALLING = 64
"""Most handshakes at once. Above it, the first one of the host with the most is cut off."""


@dataclass(frozen=True)
class Identity:
    """Identifies this study's end of a connection between hosts."""

    certificate: str
    """PEM; peers trust it alone."""
    context: ssl.SSLContext


class Channel:
    """Listens for ranks. Wait for it to be readable, then `accept`, from one thread."""

    def __init__(self, host: str = "127.0.0.1", identity: Identity | None = None) -> None:
        """`identity` is for a `host` that is not loopback."""
        self._socket = socket.create_server((host, 0))
        self._identity = identity
        self._key = secrets.token_bytes(32)
        self._came: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()
        self._dialling: dict[socket.socket, str] = {}
        """Sockets in their handshake, by the address of their host; empty once authenticated."""
        self._lock = threading.Lock()
        self._open = True
        threading.Thread(target=self._listen, daemon=True).start()

    def fileno(self) -> int:
        return self._woken

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def credentials(self) -> str:
        """The key and certificate for an agent, as one line of JSON."""
        certificate = self._identity.certificate if self._identity else ""
        return json.dumps({"key": self._key.hex(), "certificate": certificate})

    def dial(self, rank: int, *, child: bool) -> Dial:
        """The address and key that one process dials with, as `rank`."""
        host, port = self.address
        return Dial(
            host=host,
            port=port,
            key=self._key.hex(),
            rank=rank,
            child=child,
            token=secrets.token_hex(8),
            certificate=self._identity.certificate if self._identity else "",
        )

    @property
    def awaited(self) -> bool:
        """Whether a peer dialled and was not accepted yet."""
        with self._lock:
            return bool(self._dialling) or not self._came.empty()

    def accept(self) -> Peer | None:
        """The next authenticated peer that has sent a message; None if there is none."""
        try:
            peer = self._came.get_nowait()
        except queue.Empty:
            return None
        os.read(self._woken, 1)
        return peer

    def close(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            dialling = list(self._dialling)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends its thread
        self._socket.close()
        for connected in dialling:
            _shut(connected)
        while (peer := self.accept()) is not None:
            peer.close()
        os.close(self._wake)
        os.close(self._woken)

    def _listen(self) -> None:
        while self._open:
            try:
                connected, (host, _) = self._socket.accept()
            except OSError:
                if self._open:  # the peer hung up already, or too many files are open
                    time.sleep(0.01)
                continue
            with self._lock:
                if len(self._dialling) >= MOST_DIALLING:
                    strangers = Counter(by for by in self._dialling.values() if by)
                    for most, _ in strangers.most_common(1):
                        _shut(next(each for each, by in self._dialling.items() if by == most))
                self._dialling[connected] = host
            threading.Thread(target=self._let_in, args=(connected,), daemon=True).start()

    def _let_in(self, connected: socket.socket) -> None:
        connected.settimeout(PEER_TIMEOUT_S)
        # The socket's timeout is for one read; a peer may send byte after byte.
        late = threading.Timer(PEER_TIMEOUT_S, _shut, [connected])
        late.daemon = True
        late.start()
        peer = None
        try:
            stream = Stream(connected, self._identity.context if self._identity else None)
            answer(stream, self._key)
            with self._lock:
                self._dialling[connected] = ""  # authenticated: it is not cut off any more
            peer = Peer(stream)
            peer.wait_for_word()
        except (OSError, EOFError, ValueError):
            peer = None
            connected.close()
        finally:
            late.cancel()
        with self._lock:
            del self._dialling[connected]
            if peer is None or not self._open:
                connected.close()
                return
            watch(connected)
            self._came.put(peer)
            os.write(self._wake, b"1")


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # gone already
        connected.shutdown(socket.SHUT_RDWR)


class Peer:
    """The other side of an authenticated connection."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._first: bytes | None = None
        self._torn_since: float | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def here(self) -> str:
        """The address of this host that it dialled."""
        return self._stream.here

    def send(self, message: Message) -> None:
        """Raises OSError if the peer is gone."""
        self._stream.send(encode(message))

    def wait_for_word(self) -> None:
        """Wait for its first message. Raises as `receive` does."""
        self._first = self._stream.receive(MAX_MESSAGE_BYTES)

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            EOFError: the peer is gone.
            OSError: nothing came within the socket's timeout.
            WireError: the data is no message of this version, or too long.
        """
        first, self._first = self._first, None
        try:
            return decode(first if first is not None else self._stream.receive(MAX_MESSAGE_BYTES))
        except FrameError as error:
            raise WireError(f"bad message: {error}") from error

    def arrived(self) -> Iterator[Message]:
        """Messages that have arrived; does not wait. Then raises as `receive` does."""
        try:
            if self._first is not None:
                yield self.receive()
            for data in self._stream.arrived(MAX_MESSAGE_BYTES):
                self._torn_since = None  # another one may be torn now
                yield decode(data)
        except FrameError as error:
            raise WireError(f"bad message: {error}") from error
        now = time.monotonic()
        self._torn_since = (self._torn_since or now) if self._stream.torn else None
        if self.stuck:
            raise WireError("bad message: it does not go on")

    @property
    def stuck(self) -> bool:
        """Whether the peer stopped within a message."""
        since = self._torn_since
        return since is not None and time.monotonic() - since > PEER_TIMEOUT_S

    def limit(self, timeout_s: float) -> None:
        """Limit how long `receive` waits for data, and `send` for room."""
        self._stream.limit(timeout_s)

    def hang_up(self) -> None:
        """End this direction: send nothing more. The peer may still send."""
        self._stream.shut(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection, also for threads that wait for it."""
        self._stream.shut()
        self._stream.close()
