"""Who starts one agent on each node of a study. One file and one row of `LAUNCHERS` each.

A member is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.installed import missing
from autotune.launch.launcher import Asked, Launcher
from autotune.units import parse_name


@dataclass(frozen=True)
class Row:
    """Where a launcher is, and what it needs."""

    module: str
    """It has a function `make(asked)`."""
    argument: str | None = None
    """What follows its name and a colon."""
    package: str | None = None
    """What has to be installed for it."""


LAUNCHERS = {
    "slurm": Row("autotune.launch.slurm"),
    "ray": Row("autotune.launch.ray", package="ray"),
    "ssh": Row("autotune.launch.ssh", argument="HOSTFILE"),
    "wait": Row("autotune.launch.wait"),
}
"""By the name that `--launch` takes."""
WRITTEN = tuple(
    name + (f":{row.argument}" if row.argument else "") for name, row in LAUNCHERS.items()
)


def parse_launch(text: str, flag: str) -> str:
    """`text`, which names a launcher, with what it needs to know.

    Raises:
        UsageError: it does not.
    """
    name, colon, argument = text.partition(":")
    row = LAUNCHERS[parse_name(name, flag, known=tuple(LAUNCHERS))]
    if row.argument and not argument:
        raise UsageError(f"{flag} {text}: names no {row.argument}; write {name}:{row.argument}")
    if colon and not row.argument:
        raise UsageError(f"{flag} {text}: {name} takes nothing; write {flag} {name}")
    return text


def checked(
    text: str | None, nodes: int | None, *, world_size: int | None = None,
    interface: str | None = None,
) -> Launcher | None:  # fmt: skip
    """The launcher that `text` names, which has started nothing; None where none is meant.

    In a Slurm job of several nodes it need not be named; `nodes` of 1 is then this machine.

    Raises:
        UsageError: it cannot work here, or what is asked for does not go together.
    """
    from autotune.launch.slurm_job import SlurmJob  # which imports psutil

    job = SlurmJob.found() if text is None and nodes != 1 else None
    if job is None and text is None:
        _refuse_what_is_of_launchers(nodes, interface)
        return None
    name, _, argument = (text or "slurm").partition(":")
    row = LAUNCHERS[name]
    if row.package and (why := missing(row.package)):
        raise UsageError(f"--launch {name}: {why}")
    note = f"in Slurm job {job.number} of {len(job.names)} nodes: --launch slurm" if job else ""
    made: Launcher = importlib.import_module(row.module).make(
        Asked(argument, nodes, interface, note)
    )
    slots = sum(made.slots.values())
    if slots and world_size is not None and world_size > slots:
        raise UsageError(
            f"--world-size {world_size}: --launch {text} has {slots} slots on {made.nodes}"
            f" nodes; use --world-size {slots}"
        )
    return made


def _refuse_what_is_of_launchers(nodes: int | None, interface: str | None) -> None:
    for flag, value in [("--nodes", nodes), ("--interface", interface)]:
        if value not in (None, 1):
            raise UsageError(
                f"{flag} {value}: needs --launch, which says who starts agents there:"
                f" {', '.join(WRITTEN)}"
            )
