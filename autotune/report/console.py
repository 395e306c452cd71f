"""The console that reports are printed on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TextIO, cast

from rich.console import Console

MIN_WIDTH, MAX_WIDTH = 40, 100


class Forgiving:
    """A stream whose reader may have gone, as in `| head -1`: what it cannot write is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console_for(stream: TextIO, width: int | None = None, most: int = MAX_WIDTH) -> Console:
    """One that prints plain text on `stream`, `width` characters wide or as wide as it is, but
    `most` of them."""
    file = cast(TextIO, Forgiving(stream))
    # In a notebook, rich would put every line into an element of its own.
    console = Console(
        file=file, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False
    )
    console.width = max(MIN_WIDTH, min(console.width, most))
    return console
