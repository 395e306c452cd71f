"""What a study gives to a runner."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from autotune.wire.stopping import Phase


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """To the runner of one slot."""

    logs: Path
    """Folder for what processes print."""
    seed: int = 0
    budget_s: float = math.inf
    stop: Callable[[], bool] = lambda: False
    """Whether the user wants to end the study."""
    on_phase: Callable[[Phase, int], None] = lambda phase, steps: None
    """Told where a probe is, with the steps it made there."""
    note: Callable[[str], None]
    """Told what the user should know, one line each."""
    on_lost: Callable[[str], None] | None = None
    """Told at once, by a thread, why a node is lost, in one line; where it is None, `note` is."""
    turn: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Entered, with the name of the machine, by a runner that shares it with others, while a probe
    makes its steps."""
    rows: int | None = None
    """That the model of a script gets of each sample, where that is known."""
