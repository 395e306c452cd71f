"""What people type. One module and one row of `COMMANDS` each.

A command is a function with a signature that cyclopts understands. It returns what carries it
out, a `Run` of `app.py`, and is imported when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass


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
}
DEFAULT = "tune"
"""What runs where no command is named; this one is imported at once."""
