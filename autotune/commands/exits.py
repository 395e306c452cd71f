"""Exit codes of the process, and the one line that says why."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum
from itertools import pairwise

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from autotune.errors import UsageError
from autotune.space.axes import meant


class ExitCode(IntEnum):
    """Names are those of `folder.ending.Ending`, if it has them."""

    FOUND = 0
    INTERNAL = 1
    """The folder cannot be written any more; or an uncaught exception, with its traceback."""
    USAGE = 2
    NOTHING_FITS = 3
    STOPPED = 4
    """The user stopped the study; a result is written."""
    NO_MEASUREMENT = 5
    """Also if `verify` cannot tell."""
    FINDINGS = 7
    """`check` found something."""
    NOT_VERIFIED = 6
    """A longer run was slower than the result, or took more memory."""


def complain(message: str) -> None:
    """Print an error on stderr, in one line."""
    with suppress(OSError):  # nobody reads it; the exit code tells, too
        print(f"autotune: {_in_one_line(message)}", file=sys.stderr)


def one_line(error: UsageError | CycloptsError) -> str:
    """The error of the input, and a remedy."""
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(error.unused_tokens or [])
        instead = "several values are joined by commas, e.g. --depth 2,4"
        return _in_one_line(
            f"unexpected {unused}; see --help; {_quoted(error, unused) or instead}"
        )
    if isinstance(error, UnknownOptionError):
        asked = (error.token.keyword or error.token.value).partition("=")[0]
        flags = [name for each in error.argument_collection for name in each.names if each.parse]
        near = meant(asked.lstrip("-"), [flag.lstrip("-").replace("-", "_") for flag in flags])
        hint = f" Did you mean --{near.replace('_', '-')}?" if near else " See --help."
        if quoted := _quoted(error, "..."):
            hint += f" If it is the script's, {quoted}."
        elif any("--script" in each.names and each.tokens for each in error.argument_collection):
            name = asked.lstrip("-").replace("-", "_")
            hint += f' A flag of the script needs --axis "{name}=1,2", and {{{name}}} in --script.'
        return _in_one_line(f"Unknown option: {asked}.{hint}")
    return _in_one_line(str(error))


def _quoted(error: CycloptsError, rest: str) -> str:
    """The form of --phase-args, if it got one word; else empty."""
    for flag, value in pairwise(error.root_input_tokens or ()):
        if flag == "--phase-args" and " " not in value:
            return f'quote the arguments: --phase-args "{value} {rest}"'
    return ""


def _in_one_line(text: str) -> str:
    """`text` without line ends, with control characters written out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
