"""Errors of wrong input."""


class UsageError(Exception):
    """The input is wrong. The message is one line; the command line ends with exit code 2."""


class ModelError(Exception):
    """The user's own model failed. The command line shows where, and ends with exit code 5."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback
        """The traceback in the failed process."""


class NoNodesError(Exception):
    """There is no machine to run on, or none is left; the message says why in one line."""
