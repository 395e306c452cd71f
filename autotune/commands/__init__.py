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
class Row:
    """Where a command is, and what it does in one sentence."""

    path: str
    """As `module:function`."""
    help: str


COMMANDS = {
    "tune": Row(
        "autotune.commands.tune:tune",
        "Find the fastest training configuration that fits, by running real steps.",
    ),
    "plan": Row(
        "autotune.commands.plan:plan",
        "Say what fits on GPUs that are not here, and what to set on them.",
    ),
    "verify": Row(
        "autotune.commands.verify:verify",
        "Train a result for longer, and compare with what was measured.",
    ),
    "check": Row(
        "autotune.commands.check:check",
        "Check training configurations before an expensive launch, also against a result.",
    ),
    "diagnose": Row(
        "autotune.commands.diagnose:diagnose",
        "Say why a training run ended, from its logs, and what to do; or look at this machine.",
    ),
    "loader": Row(
        "autotune.commands.loader:loader",
        "Say with how many workers a data loader keeps up with training.",
    ),
    "report": Row(
        "autotune.commands.report:report",
        "Show a study as a page, live while it runs, as pictures or as a table.",
    ),
    "compare": Row(
        "autotune.commands.compare:compare",
        "Show studies side by side: their winners, and what differs beyond the noise.",
    ),
    "export": Row(
        "autotune.commands.export:export",
        "Write a result as configurations that other tools take as they are.",
    ),
}
DEFAULT = "tune"
"""What runs where no command is named; this one is imported at once."""
