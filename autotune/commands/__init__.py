"""What people type. One module and one row of `COMMANDS` each.

A command is a function with a signature that cyclopts understands. It returns what carries it
out, a `Run`, and is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[list[str], float], int]
"""Carries a command out, given its command line and when that began; returns the exit code."""


@dataclass(frozen=True)
class CommandRow:
    """Where a command is, and what it does in one sentence."""

    path: str
    """As `module:function`."""
    help: str


COMMANDS = {
    "tune": CommandRow(
        "autotune.commands.tune:tune",
        "Find the fastest training configuration that fits, by running real steps.",
    ),
    "plan": CommandRow(
        "autotune.commands.plan:plan",
        "Say what fits on GPUs that are not here, and what to set on them.",
    ),
    "verify": CommandRow(
        "autotune.commands.verify:verify",
        "Train a result for longer, and compare with what was measured.",
    ),
    "check": CommandRow(
        "autotune.commands.check:check",
        "Check training configurations before an expensive launch, also against a result.",
    ),
    "diagnose": CommandRow(
        "autotune.commands.diagnose:diagnose",
        "Say why a training run ended, from its logs, and what to do; or look at this machine.",
    ),
    "loader": CommandRow(
        "autotune.commands.loader:loader",
        "Say with how many workers a data loader keeps up with training.",
    ),
    "report": CommandRow(
        "autotune.commands.report:report",
        "Show a study as a page, live while it runs, as pictures or as a table.",
    ),
    "compare": CommandRow(
        "autotune.commands.compare:compare",
        "Show studies side by side: their winners, and what differs beyond the noise.",
    ),
    "export": CommandRow(
        "autotune.commands.export:export",
        "Write a result as configurations that other tools take as they are.",
    ),
}
DEFAULT = "tune"
"""What runs where no command is named; this one is imported at once."""
