"""The socket that ranks dial: loopback, a random key, JSON messages of bounded size."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from autotune.wire.messages import MAX_MESSAGE_BYTES, Dial, Message, WireError, decode, encode

PEER_TIMEOUT_S = 5
"""A peer that began a handshake or a message and does not go on is dropped after this."""


class Channel:
    """Listens for ranks. Used from one thread: wait for it to be readable, then `accept`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((host, 0))
        self._key = secrets.token_bytes(32)

    def fileno(self) -> int:
        return self._socket.fileno()

    def dial(self, rank: int, *, child: bool) -> Dial:
        """What `rank` needs to know to reach this channel."""
        host, port = self._socket.getsockname()[:2]
        return Dial(host=host, port=port, key=self._key.hex(), rank=rank, child=child)

    def accept(self) -> Peer | None:
        """The next peer that knows the key; None for one that does not."""
        peer, _ = self._socket.accept()
        connection = connect(peer.dup())
        # They are of one read: a peer that sends byte after byte would pass them for ever.
        late = threading.Timer(PEER_TIMEOUT_S, _shut, [peer])
        late.start()
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, OSError, EOFError, ValueError, AssertionError):
            connection.close()
            return None
        finally:
            late.cancel()
            peer.close()
        return Peer(connection)

    def close(self) -> None:
        self._socket.close()


def connect(peer: socket.socket) -> Connection:
    """`peer`, which belongs to the connection from now on; no read or write waits long."""
    # The kernel's own timeouts hold for the plain reads that Connection makes.
    timeout = struct.pack("ll", PEER_TIMEOUT_S, 0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    return Connection(peer.detach())


def _shut(peer: socket.socket) -> None:
    with suppress(OSError):  # gone already
        peer.shutdown(socket.SHUT_RDWR)


class Peer:
    """One authenticated rank."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises OSError where the peer is gone."""
        self._connection.send_bytes(encode(message))

    def receive(self) -> Message:
        """The message that is waiting.

        Raises:
            EOFError: the peer is gone.
            WireError: what came is no message of this version, too long, or cut short.
        """
        try:
            data = self._connection.recv_bytes(MAX_MESSAGE_BYTES)
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        except OSError as error:
            raise WireError(f"bad message: {error}") from error
        return decode(data)

    def close(self) -> None:
        self._connection.close()
