"""The socket that ranks dial: one interface, a random key, JSON messages of bounded size.

Who dials is let in by a thread of its own, so that nobody who does not know the key, or does not
go on, keeps the study waiting.

A rank is known by a token, not by a process id. If too many dial, those go that have proven
nothing, from the host with the most of them. A rank that was cut off in this way dials again.
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
"""A peer that began a handshake or a message and does not go on is dropped after this."""
MOST_DIALLING = 64
"""So many may be in their handshake; of more, the first one goes of the host that has the most."""


@dataclass(frozen=True)
class Identity:
    """What tells this study's end of a connection between hosts from anybody else's."""

    certificate: str
    """PEM; whoever dials trusts it alone."""
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
        """With the address of its host, until it has proven that it knows the key."""
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
        """What an agent needs to trust this study and be trusted: one line of JSON."""
        certificate = self._identity.certificate if self._identity else ""
        return json.dumps({"key": self._key.hex(), "certificate": certificate})

    def dial(self, rank: int, *, child: bool) -> Dial:
        """What one process needs to know to reach this channel, as `rank`."""
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
        """Whether somebody has dialled who was not accepted yet."""
        with self._lock:
            return bool(self._dialling) or not self._came.empty()

    def accept(self) -> Peer | None:
        """Who came first of those that know the key and have said a word; None for nobody."""
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
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends its thread
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
                if self._open:  # of one who hung up already, or too many files are open
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
        # That is of one read: who sends byte after byte would pass it for ever.
        late = threading.Timer(PEER_TIMEOUT_S, _shut, [connected])
        late.daemon = True
        late.start()
        peer = None
        try:
            stream = Stream(connected, self._identity.context if self._identity else None)
            answer(stream, self._key)
            with self._lock:
                self._dialling[connected] = ""  # which is nobody's host: it is let in
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
    """One who knows the key."""

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
        """Raises OSError where the peer is gone."""
        self._stream.send(encode(message))

    def wait_for_word(self) -> None:
        """Have its first message here. Raises as `receive` does."""
        self._first = self._stream.receive(MAX_MESSAGE_BYTES)

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            EOFError: the peer is gone.
            OSError: nothing came within the socket's timeout.
            WireError: what came is no message of this version, or too long.
        """
        first, self._first = self._first, None
        try:
            return decode(first if first is not None else self._stream.receive(MAX_MESSAGE_BYTES))
        except FrameError as error:
            raise WireError(f"bad message: {error}") from error

    def arrived(self) -> Iterator[Message]:
        """What has come; does not wait. Raises as `receive` does, after that."""
        try:
            if self._first is not None:
                yield self.receive()
            for data in self._stream.arrived(MAX_MESSAGE_BYTES):
                yield decode(data)
        except FrameError as error:
            raise WireError(f"bad message: {error}") from error
        now = time.monotonic()
        self._torn_since = (self._torn_since or now) if self._stream.torn else None
        if self.stuck:
            raise WireError("bad message: it does not go on")

    @property
    def stuck(self) -> bool:
        """Whether it began a message and does not go on."""
        since = self._torn_since
        return since is not None and time.monotonic() - since > PEER_TIMEOUT_S

    def limit(self, timeout_s: float) -> None:
        """Have `receive` wait no longer than that for a word, and `send` for room."""
        self._stream.limit(timeout_s)

    def hang_up(self) -> None:
        """Send nothing more; the peer knows that, and may still."""
        self._stream.shut(socket.SHUT_WR)

    def close(self) -> None:
        """Whoever waits for it, waits no longer."""
        self._stream.shut()
        self._stream.close()
