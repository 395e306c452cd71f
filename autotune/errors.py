"""What is raised for wrong input."""


class UsageError(Exception):
    """The input is wrong. The message is one line; the command line ends with exit code 2."""
