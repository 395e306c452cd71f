"""Who proposes the next candidate. One file and one row of `SAMPLERS` each.

A member is imported when it is asked for: Optuna's samplers are heavy.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune import installed

if TYPE_CHECKING:
    from autotune.outcome import Objective
    from autotune.predict.predictor import Predictor
    from autotune.samplers.sampler import Sampler
    from autotune.space.space import Space


@dataclass(frozen=True)
class Row:
    """Where a sampler is, and what it needs."""

    module: str
    """It has a function `make(space, predictor, objective, seed)`."""
    package: str | None = None
    """What has to be installed for it beside Optuna."""


SAMPLERS = {
    "frontier": Row("autotune.samplers.frontier"),
    "tpe": Row("autotune.samplers.tpe"),
    "gp": Row("autotune.samplers.gp", package="scipy"),
    "random": Row("autotune.samplers.random"),
    "grid": Row("autotune.samplers.in_order"),
}
DEFAULT = "frontier"


def missing(name: str) -> str:
    """What the sampler `name` lacks, and the line that installs it; empty where it has all."""
    package = SAMPLERS[name].package
    return installed.missing(package) if package else ""


def make(
    name: str, space: Space, predictor: Predictor, objective: Objective, seed: int
) -> Sampler:
    """The sampler `name`; it draws from `seed`, where it draws."""
    found: Sampler = importlib.import_module(SAMPLERS[name].module).make(
        space, predictor, objective, seed
    )
    return found
