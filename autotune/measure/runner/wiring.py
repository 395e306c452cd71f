"""The study's side of a runner: folders and callbacks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from autotune.wire.stopping import Phase


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Folders and callbacks for the runner of one slot."""

    logs: Path
    """Folder for the output of processes."""
    seed: int = 0
    budget_s: float = math.inf
    stop: Callable[[], bool] = lambda: False
    """Whether the user wants to end the study."""
    on_phase: Callable[[Phase, int], None] = lambda phase, steps: None
    """Takes the phase of a probe, and its steps in that phase."""
    note: Callable[[str], None]
    """Takes notes to the user, one line each."""
    on_lost: Callable[[str], None] | None = None
    """A thread calls it at once with one line if a node is lost; None for `note`."""
    turn: Callable[[str], AbstractContextManager[object]] = nullcontext
    """A runner that shares a machine enters it, with the machine's name, to make steps."""
    rows: int | None = None
    """Rows of each sample that a script's model gets, if known."""

    def last_number(self, name: str) -> int:
        """The largest number in a log's name that matches `name`; 0 without one."""
        found = (re.fullmatch(name, path.name) for path in self.logs.iterdir())
        return max((int(match[1]) for match in found if match), default=0)
