"""The commands of the command line. One module and one row of `COMMANDS` each.

A command is a function with a signature that cyclopts understands. It is imported when it is
called, and returns a `Run`, which carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[list[str], float], int]
"""Carries a command out, given its command line and its start time; returns the exit code."""


@dataclass(frozen=True)
class CommandRow:
    """The place of a command, and its purpose in one sentence."""

    path: str
    """As `module:function`."""
    help: str


COMMANDS = {
    "tune": CommandRow(
        "autotune.commands.tune:tune",
        "Find the fastest training configuration that fits in memory, by running real steps.",
    ),
    "plan": CommandRow(
        "autotune.commands.plan:plan",
        "Predict which configurations fit on GPUs that you do not have yet.",
    ),
    "verify": CommandRow(
        "autotune.commands.verify:verify",
        "Train a result for longer, and compare speed and memory with the measurement.",
    ),
    "check": CommandRow(
        "autotune.commands.check:check",
        "Check configuration files before a launch, alone or against a result.",
    ),
    "diagnose": CommandRow(
        "autotune.commands.diagnose:diagnose",
        "Explain from its logs why a training run ended, and what to do about it.",
    ),
    "loader": CommandRow(
        "autotune.commands.loader:loader",
        "Find how many workers a data loader needs to keep up with training.",
    ),
    "report": CommandRow(
        "autotune.commands.report:report",
        "Show a study as a page, as pictures or as a table, also while it runs.",
    ),
    "compare": CommandRow(
        "autotune.commands.compare:compare",
        "Compare studies: winners, and differences beyond the noise.",
    ),
    "export": CommandRow(
        "autotune.commands.export:export",
        "Write a result as configuration files of other tools.",
    ),
}
DEFAULT = "tune"
"""The command if none is named; this one is imported at once."""
