"""Messages over a socket: framed, in TLS 1.3 between hosts, and authenticated by a key.

A frame is its length, 4 bytes in network order, and that many bytes. Both sides prove that they
know the key (HMAC-SHA256 over a random number of each). TLS runs in memory: one thread may read
while others write, and `poll` sees all arrived data.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

READ_BYTES = 2**16
NUMBER_BYTES = 32
QUIET_S = 2
"""After this silence the kernel asks the other host for a sign of life, every 2 s."""
AGAIN_S = 10.0
GONE_S = 8
"""A host that confirms nothing for so many seconds is gone."""


class StrangerError(ConnectionError):
    """The other side does not know the key."""


class TamperedError(EOFError):
    """TLS found changed data."""


class FrameError(ValueError):
    """The other side announced a frame above the limit."""


class Stream:
    """A connection; closes its socket. Any thread may send; one thread receives."""

    def __init__(self, connected: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is a context of either side.

        Raises:
            OSError: the handshake failed; the socket is closed.
        """
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._state, self._sending = threading.Lock(), threading.Lock()
        self._arrived = bytearray()
        if tls is not None:
            serves = tls.protocol is ssl.PROTOCOL_TLS_SERVER
            self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_side=serves)
            try:
                self._shake_hands(self._tls)
            except OSError:
                self.close()
                raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def here(self) -> str:
        """This host's address in the connection."""
        return str(self._socket.getsockname()[0])

    def send(self, data: bytes) -> None:
        """Raises OSError if the other side is gone."""
        frame = struct.pack("!I", len(data)) + data
        with self._sending:  # frames leave in the order in which they are encrypted
            if self._tls is not None:
                with self._state:
                    self._tls.write(frame)
                    frame = self._outgoing.read()
            self._socket.sendall(frame)

    def receive(self, most_bytes: int) -> bytes:
        """The next frame; waits for it.

        Raises:
            EOFError: the other side is gone, or its data was changed on the way.
            FrameError: it is longer than `most_bytes`.
            OSError: the socket failed, or its timeout passed.
        """
        while (frame := self._frame(most_bytes)) is None:
            self._read()
        return frame

    def arrived(self, most_bytes: int) -> Iterator[bytes]:
        """Whole frames that have arrived; does not wait. Then raises as `receive` does."""
        ended: EOFError | None = None
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        try:
            if waiting.poll(0):
                self._read()
        except EOFError as error:
            ended = error
        while (frame := self._frame(most_bytes)) is not None:
            yield frame
        if ended is not None:
            raise ended

    @property
    def torn(self) -> bool:
        """Whether a part of a frame has arrived."""
        return bool(self._arrived)

    def limit(self, timeout_s: float) -> None:
        """Let a wait for the other side raise TimeoutError after `timeout_s`."""
        self._socket.settimeout(timeout_s)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection, or one direction, also for threads that wait. Close it later."""
        with suppress(OSError):  # gone already
            self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def _frame(self, most_bytes: int) -> bytes | None:
        if len(self._arrived) < 4:
            return None
        (size,) = struct.unpack_from("!I", self._arrived)
        if size > most_bytes:
            raise FrameError(f"a frame of {size} bytes, at most {most_bytes} may come")
        if len(self._arrived) < 4 + size:
            return None
        frame = bytes(self._arrived[4 : 4 + size])
        del self._arrived[: 4 + size]
        return frame

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            if error.errno is None:  # the socket's timeout
                raise
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("the other side hung up")
        if self._tls is None:
            self._arrived += data
            return
        with self._state:
            self._incoming.write(data)
            try:
                while part := self._tls.read(READ_BYTES):
                    self._arrived += part
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError as error:
                raise EOFError("the other side hung up") from error
            except ssl.SSLError as error:
                raise TamperedError(f"TLS: {error.reason}") from error

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        done = False
        while not done:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                self._flush()
                if not (data := self._socket.recv(READ_BYTES)):
                    raise ConnectionResetError("hung up in the handshake") from None
                self._incoming.write(data)
        self._flush()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._socket.sendall(data)


def dial(host: str, port: int, key: bytes, certificate: str = "") -> Stream:
    """A connection to a peer that knows `key`, and has the `certificate` (PEM), if one is given.

    A peer may hang up in the handshake if many dial at once; then dial again.

    Raises:
        OSError: nobody listens, or a stranger.
        EOFError: the peer hung up.
    """
    until = time.monotonic() + AGAIN_S
    while True:
        try:
            return _dial(host, port, key, certificate)
        except (StrangerError, ConnectionRefusedError):
            raise
        except (ConnectionError, EOFError):
            if time.monotonic() > until:
                raise
        time.sleep(AGAIN_S / 100)


def _dial(host: str, port: int, key: bytes, certificate: str) -> Stream:
    connected = socket.create_connection((host, port), timeout=GONE_S)
    watch(connected)
    stream = Stream(connected, trusting(certificate) if certificate else None)
    try:
        theirs = stream.receive(NUMBER_BYTES)
        mine = secrets.token_bytes(NUMBER_BYTES)
        stream.send(mine + _proof(key, b"dials", theirs, mine))
        try:
            proof = stream.receive(NUMBER_BYTES)
        except EOFError as error:
            raise StrangerError("it knows another key, and hung up") from error
        if not hmac.compare_digest(proof, _proof(key, b"answers", theirs, mine)):
            raise StrangerError("the answering peer does not know the key")
    except BaseException:
        stream.close()
        raise
    connected.settimeout(None)
    return stream


def answer(stream: Stream, key: bytes) -> None:
    """Check that the dialling peer knows `key`, and prove the same.

    Raises:
        OSError: it does not, or is gone.
        EOFError: it hung up.
        FrameError: it has another protocol.
    """
    mine = secrets.token_bytes(NUMBER_BYTES)
    stream.send(mine)
    said = stream.receive(2 * NUMBER_BYTES)
    theirs, proof = said[:NUMBER_BYTES], said[NUMBER_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"dials", mine, theirs)):
        raise StrangerError("the dialling peer does not know the key")
    stream.send(_proof(key, b"answers", mine, theirs))


def _proof(key: bytes, who: bytes, answered: bytes, dialled: bytes) -> bytes:
    return hmac.digest(key, who + answered + dialled, "sha256")


def trusting(certificate: str) -> ssl.SSLContext:
    """The context of a dialling side that trusts only this `certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the pinned certificate identifies the host
    context.load_verify_locations(cadata=certificate)
    return context


def watch(connected: socket.socket) -> None:
    """Let the kernel notice within `GONE_S` that the other host is gone."""
    if sys.platform != "linux":
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, QUIET_S),
        (socket.TCP_KEEPINTVL, QUIET_S),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 1000 * GONE_S),  # for sent data without confirmation
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
