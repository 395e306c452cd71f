"""The cause of a failed launch, if its launcher only reports that a process failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RANK = re.compile(r"^\[\w*rank\d+\]:? ?", re.MULTILINE)
"""The prefix of a rank's lines in the output of launchers."""
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException")
_LOST_PEER = re.compile(r"(?:closed|reset) by peer|ncclRemoteError", re.IGNORECASE)
_REFUSED = re.compile(r"^\S+: error: .+$", re.MULTILINE)
"""An error of argparse."""
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE
)
_BOX = re.compile(r"^│ *(\S.*?) *│$", re.MULTILINE)
"""A line in a box: the errors of tyro and typer."""
_UNFOUND = re.compile(
    r"^\S*python[\d.]*: ((?:No module named|can't open file|Error while finding module) .+)$",
    re.MULTILINE,
)
"""Python itself has nothing to run."""
_BUILT = re.compile(r"(Error building extension '\w+'): .*", re.DOTALL)
"""torch's error has the compiler's output."""


def is_launchers(kinds: Sequence[str]) -> bool:
    """Whether an error of these classes only says that another process failed."""
    return bool({kind.rpartition(".")[2] for kind in kinds}.intersection(_LAUNCHERS))


def is_peers(error: str) -> bool:
    """Whether an error only says that another rank is gone."""
    return _LOST_PEER.search(error) is not None


def cause_in(log: str) -> str | None:
    """The line of `log` that says why a process failed; None if there is none."""
    text = _RANK.sub("", log)
    errors = [
        line for line in _TRACEBACK.findall(text)
        if not is_launchers([line.partition(":")[0]])
    ]  # fmt: skip
    refused, boxed, unfound = (e.findall(text) for e in (_REFUSED, _BOX, _UNFOUND))
    return next(iter([*refused[:1], *errors[-1:], *unfound[:1], *boxed[:1]]), None)


def short(error: str) -> str:
    """`error`, without the output of a compiler."""
    return _BUILT.sub(r"\1: nvcc, CUDA's compiler, is missing or failed; see the log", error)


def hint(reason: str) -> str:
    """The remedy for an error that a launcher would avoid; empty for other errors."""
    if "environment variable RANK expected" not in reason:
        return ""
    return '; start it with torchrun: --script "torchrun --nproc_per_node 2 train.py ..."'
