"""A study's page while it runs, only on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.result.files import is_held
from autotune.result.folder.folder import Folder
from autotune.show.view.page import page
from autotune.show.view.study import read

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
_MAKING = threading.Lock()


def server(path: Path, port: int, lost: Callable[[str], object]) -> ThreadingHTTPServer:
    """Serves the page of the study in `path` on loopback; `port` 0 is any free one.

    It answers GET of one address, and only under its own host name: so a stranger's name that
    points here is refused. `lost` gets errors of the display. Raises UsageError if the port is
    taken, or not permitted.
    """

    class Handler(_Handler):
        folder = path
        tell = staticmethod(lost)

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--port {port}: {reason}; leave it out to use a free port") from error


def state(path: Path) -> str:
    """A text that changes whenever the page does."""
    folder = Folder(path)
    seen: list[Any] = [is_held(path)]
    for file in (folder.trials, folder.best):
        try:
            found = file.stat()
            seen.append((found.st_mtime_ns, found.st_size))
        except OSError:
            seen.append(None)
    return f'"{hashlib.sha256(repr(seen).encode()).hexdigest()[:16]}"'


@lru_cache(maxsize=1)
def _made(path: Path, now: str) -> bytes:
    """The page in the state `now`. Raises UsageError if the study cannot be read."""
    return page(read(path), live=True, state=now).encode("utf-8", "replace")


class _Handler(BaseHTTPRequestHandler):
    timeout = 30.0  # a silent client must not hold a thread
    folder: Path
    tell: Callable[[str], object]
    server: ThreadingHTTPServer

    def do_GET(self) -> None:
        known = {f"{name}:{self.server.server_port}" for name in NAMES}
        if not known.issuperset(self.headers.get_all("Host", [""])):
            self.send_error(HTTPStatus.FORBIDDEN, "call it by its own name")
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.headers.get("If-None-Match") == (now := state(self.folder)):
            self._answer(HTTPStatus.NOT_MODIFIED, b"", now)
        else:
            self._page(now)

    def _page(self, now: str) -> None:
        try:
            with _MAKING:  # the page is made once for many readers
                body = _made(self.folder, now)
        except UsageError as error:
            self.tell(str(error))
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the study cannot be read")
            return
        self._answer(HTTPStatus.OK, body, now)

    def _answer(self, status: HTTPStatus, body: bytes, now: str) -> None:
        self.send_response(status)
        self.send_header("ETag", now)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the client is gone

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
