"""Launchers start one agent on each node: one file each, and one row of `choices.LAUNCHERS`."""

from __future__ import annotations

from autotune.errors import UsageError
from autotune.measure.launch.launcher import Launcher, LaunchRequest
from autotune.space.choices import LAUNCHERS, WRITTEN


def checked(
    text: str | None, nodes: int | None, *, world_size: int | None = None,
    interface: str | None = None,
) -> Launcher | None:  # fmt: skip
    """The launcher that `text` names, before its start; None if there is none.

    A Slurm job of several nodes has one without a name, unless `nodes` is 1. Raises UsageError if
    the launcher cannot work here, or the arguments exclude each other.
    """
    from autotune.measure.launch.slurm_job import SlurmJob  # imports psutil

    job = SlurmJob.found() if text is None and nodes != 1 else None
    if job is None and text is None:
        for flag, value in [("--nodes", nodes), ("--interface", interface)]:
            if value not in (None, 1):
                raise UsageError(
                    f"{flag} {value}: needs --launch, which starts agents on the nodes:"
                    f" {', '.join(WRITTEN)}"
                )
        return None
    name, _, argument = (text or "slurm").partition(":")
    row = LAUNCHERS[name]
    if why := row.missing:
        raise UsageError(f"--launch {name}: {why}")
    note = f"in Slurm job {job.number} of {len(job.names)} nodes: --launch slurm" if job else ""
    made: Launcher = row.load().make(LaunchRequest(argument, nodes, interface, note))
    slots = sum(made.slots.values())
    if slots and world_size is not None and world_size > slots:
        raise UsageError(
            f"--world-size {world_size}: --launch {text} has {slots} slots on {made.nodes}"
            f" nodes; use --world-size {slots}"
        )
    return made
