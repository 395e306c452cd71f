"""The cause of a failed launch, where its launcher only heard that a process failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RANK = re.compile(r"^\[\w*rank\d+\]:? ?", re.MULTILINE)
"""Before lines of a rank, as launchers print them."""
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException")
_REFUSED = re.compile(r"^\S+: error: .+$", re.MULTILINE)
"""What argparse says."""
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE
)
_BOX = re.compile(r"^│ *(\S.*?) *│$", re.MULTILINE)
"""A line in a box, as tyro and typer print what they refuse."""


def is_launchers(kinds: Sequence[str]) -> bool:
    """Whether an error of these classes only says that another process failed."""
    return bool({kind.rpartition(".")[2] for kind in kinds}.intersection(_LAUNCHERS))


def cause_in(log: str) -> str | None:
    """The line of `log` that says why a process failed; None where there is none."""
    text = _RANK.sub("", log)
    errors = [
        line for line in _TRACEBACK.findall(text)
        if not is_launchers([line.partition(":")[0]])
    ]  # fmt: skip
    refused, boxed = _REFUSED.findall(text), _BOX.findall(text)
    return next(iter([*refused[:1], *errors[-1:], *boxed[:1]]), None)


def hint(reason: str) -> str:
    """What to do about an error that a launcher would avoid; empty for any other."""
    if "environment variable RANK expected" not in reason:
        return ""
    return '; start it with torchrun: --script "torchrun --nproc_per_node 2 train.py ..."'
