"""The console that reports are printed on."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleDimensions

MIN_WIDTH, MAX_WIDTH = 40, 140


class Forgiving:
    """A stream that ignores errors of writing, as after `| head -1`, and writes "?" if need be."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = _encoding(stream)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Fitted(Console):
    """Has the present width of its terminal, within limits."""

    most = MAX_WIDTH

    @property  # type: ignore[misc] # nobody sets it
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(max(MIN_WIDTH, min(width, self.most)), height)


def console_for(stream: TextIO, width: int | None = None, most: int = MAX_WIDTH) -> Console:
    """A console for plain text of `width` characters, else the stream's, at most `most`."""
    file = cast(TextIO, Forgiving(stream))
    # In a notebook, rich would put every line into an element of its own.
    console = _Fitted(
        file=file, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False
    )
    console.most = most
    return console


def _encoding(stream: TextIO) -> str:
    """The encoding of `stream`: ASCII for a terminal with the C locale, despite PEP 540."""
    said = os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8")
    if stream.isatty() and os.environ.get("LC_ALL") in ("C", "POSIX") and not said:
        return "ascii"
    return getattr(stream, "encoding", None) or "utf-8"
