"""Samplers, launchers and loggers that a word may choose: one file and one row each.

A module is imported when it is chosen: it is heavy, or needs a package of its own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from autotune.errors import UsageError
from autotune.installed import missing
from autotune.units import parse_name


@dataclass(frozen=True)
class Plugin:
    module: str
    package: str | None = None
    argument: str | None = None
    """The name of the argument after its name and a colon."""

    def load(self) -> Any:
        return importlib.import_module(self.module)

    @property
    def missing(self) -> str:
        """The missing package and the line that installs it; empty if nothing is missing."""
        return missing(self.package) if self.package else ""


SAMPLERS = {
    "frontier": Plugin("autotune.study.samplers.frontier"),
    "tpe": Plugin("autotune.study.samplers.tpe"),
    "gp": Plugin("autotune.study.samplers.gp", package="scipy"),
    "random": Plugin("autotune.study.samplers.random"),
    "grid": Plugin("autotune.study.samplers.in_order"),
}
"""Modules with a function `make(space, predictor, objective, seed)`."""
SAMPLER = "frontier"

LAUNCHERS = {
    "slurm": Plugin("autotune.measure.launch.slurm"),
    "ray": Plugin("autotune.measure.launch.ray", package="ray"),
    "ssh": Plugin("autotune.measure.launch.ssh", argument="HOSTFILE"),
    "wait": Plugin("autotune.measure.launch.wait"),
}
"""Modules with a function `make(asked)`."""
WRITTEN = tuple(
    name + (f":{row.argument}" if row.argument else "") for name, row in LAUNCHERS.items()
)
"""The forms of `--launch`."""

LOGGERS = {
    "tensorboard": Plugin("autotune.result.loggers.tensorboard", package="tensorboardX"),
    "wandb-offline": Plugin("autotune.result.loggers.wandb", package="wandb"),
}
"""Modules with a function `write(runs, folder)`, and `FOLDER`, the name of their folder."""


def parse_loggers(text: str, flag: str) -> tuple[str, ...]:
    """The trackers that `text` names. Raises UsageError if a tracker is unknown, or not
    installed."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if why := LOGGERS[parse_name(name, flag, known=tuple(LOGGERS))].missing:
            raise UsageError(f"{flag} {name}: {why}")
    return names


def parse_launch(text: str, flag: str) -> str:
    """`text`, which names a launcher with its argument. Raises UsageError if the launcher is
    unknown, or its argument is missing."""
    name, colon, argument = text.partition(":")
    row = LAUNCHERS[parse_name(name, flag, known=tuple(LAUNCHERS))]
    if row.argument and not argument:
        raise UsageError(f"{flag} {text}: needs a {row.argument}; write {name}:{row.argument}")
    if colon and not row.argument:
        raise UsageError(f"{flag} {text}: {name} takes no argument; write {flag} {name}")
    return text
