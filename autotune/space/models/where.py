"""The folder in which to look for a user's scripts and modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)


def folder() -> Path:
    """The working directory, or the folder of `looked_in`."""
    return _FOLDER.get() or Path.cwd()


@contextmanager
def looked_in(folder: Path | None) -> Iterator[None]:
    """Look in `folder` within this context; None is the working directory. Raises
    NotADirectoryError if there is no such folder."""
    if folder is not None and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: no such folder")
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
