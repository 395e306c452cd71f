"""The axes of the space: the fields of a candidate, and groups of them.

A row is an option of the command line, a parameter of Optuna's trials, a placeholder of a script's
command, a field of best.json, and a column of trials.csv and of recorded grids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.wire.settings import Axis, Depth, Level, Settings, row, rows


@dataclass(frozen=True, kw_only=True)
class Shape(Depth):
    """The axes that memory grows along."""

    seq_len: int = field(metadata=row(Axis(
        label="seq", level=Level.PROBE, always=True, metavar="INTS",
        help="Tokens per sample, e.g. 128,256")))  # fmt: skip
    micro_batch: int = field(metadata=row(Axis(
        label="micro", level=Level.PROBE, always=True, metavar="INTS",
        help="Samples per rank and micro-step, e.g. 1:64 or 8,16")))  # fmt: skip


AXES = rows(Shape) | rows(Settings)
"""By name, in the order in which they are shown."""
MEMORY_AXES = tuple(rows(Shape))
"""Memory grows along these, whatever the others are."""
OTHER_AXES = tuple(rows(Settings))
ASKED_AXES = tuple(name for name, axis in AXES.items() if not axis.always)
"""Axes that a space has only if the user asks for more than the plain value."""
SCRIPT_AXES = tuple(name for name, axis in AXES.items() if axis.of_script)
"""Axes that only a user's script has."""
ZERO_STAGES = (0, 1, 2, 3)
