"""Exit codes of the process, and the one line that says why."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum
from itertools import pairwise

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from autotune.commands import COMMANDS
from autotune.errors import UsageError
from autotune.space.axes import meant


class ExitCode(IntEnum):
    """Names are those of `folder.past.Ending`, if it has them."""

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
        words = error.unused_tokens or []
        unused = " ".join(words)
        instead = "several values are joined by commas, e.g. --depth 2,4"
        if words[:1] == list(error.root_input_tokens or [])[:1]:
            instead = _in_place_of(words[0], error)
        return _in_one_line(
            f"unexpected {unused}; see --help; {_quoted(error, unused) or instead}"
        )
    if isinstance(error, MissingArgumentError) and error.keyword is None:
        command = " ".join(error.command_chain or ())
        name = error.argument.name if error.argument else "an argument"
        return _in_one_line(f"{command}: {name} is missing; see autotune {command} --help")
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


def _in_place_of(word: str, error: CycloptsError) -> str:
    """What to write in the place of `word`, which came first and is no command."""
    if word.endswith(".py"):
        return f'for a script write --script "python {word} --batch {{micro_batch}}" or the like'
    known = error.app.assemble_argument_collection() if error.app else ()
    if any(f"--{word}" in each.names for each in known):
        return f"write --{word}"
    return f"commands are {', '.join(COMMANDS)}"


def _quoted(error: CycloptsError, rest: str) -> str:
    """The form of --phase-args, if it got one word; else empty."""
    for flag, value in pairwise(error.root_input_tokens or ()):
        if flag == "--phase-args" and " " not in value:
            return f'quote the arguments: --phase-args "{value} {rest}"'
    return ""


def _in_one_line(text: str) -> str:
    """`text` without line ends, with control characters written out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
