"""Other tools' configurations of a result. One file and one row of `EXPORTS` each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.export import deepspeed, env
from autotune.result.best import Best

EXPORTS: dict[str, Callable[[Best], dict[str, Any] | None]] = {
    "deepspeed": deepspeed.export,
    "env": env.export,
}
"""Name of a tool to a pure function: its configuration, None where the result has no use for it.

Only what was probed is exported: an option that no probe ran with does not belong there.
"""


def exports(best: Best) -> dict[str, dict[str, Any]]:
    """Every configuration that `best` can be handed on as, by the tool's name."""
    made = {name: export(best) for name, export in EXPORTS.items()}
    return {name: config for name, config in made.items() if config is not None}
