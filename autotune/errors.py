"""Errors of wrong input."""

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(Exception):
    """The input is wrong. The message is one line; the command line ends with exit code 2."""


class ModelError(Exception):
    """The user's own model failed. The command line shows where, and ends with exit code 5."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback
        """The traceback in the failed process."""


@contextmanager
def refused(what: str, remedy: str = "") -> Iterator[None]:
    """Turns an OSError into a UsageError about `what` the user named."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}{remedy}") from error


class NoNodesError(Exception):
    """There is no machine to run on, or none is left; the message says why in one line."""
