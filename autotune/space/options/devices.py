"""Where probes run: devices of this machine, or several machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from autotune.errors import UsageError
from autotune.space import choices
from autotune.space.options.flag import as_it_is, checked, option, switch
from autotune.units import parse_int

Parallel = int | Literal["auto"]
"""Number of probes at once; "auto" for as many as possible."""


def pairs(text: str, flag: str) -> dict[str, str]:
    """Names and values as "nodes=4;model=1B". Raises UsageError if the text has another form."""
    found = {}
    for part in filter(None, text.split(";")):
        name, sign, value = part.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"{flag} {part}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _read_parallel(text: str, flag: str) -> Parallel:
    if text.strip() == "auto":
        return "auto"
    try:
        found = parse_int(text, flag)
    except UsageError as error:
        raise UsageError(f"{error}, or auto") from error
    if found < 1:
        raise UsageError(f"{flag} {found}: must be at least 1, or auto")
    return found


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    # fmt: off
    device: str = option(
        "--device", as_it_is, "DEVICE",
        "auto (all GPUs, else cpu), cpu, cuda, or some GPUs as cuda:0,2; emulated:8xH100 or"
        " emulated:2x8x80GiB for emulated GPUs; replay:FILE.csv for recorded measurements.",
        default="auto")
    column: str | None = option(
        "--column", partial(checked, parse=pairs), "COLUMN",
        "Column of a replayed table: micro_batch=mbs, tokens_per_s=tok/s. Can be repeated.",
        type=list[str])
    row: str | None = option(
        "--row", partial(checked, parse=pairs), "ROW",
        "Rows of a replayed table that count: nodes=4 has those with 4 in the column nodes. Can be"
        " repeated.", type=list[str])
    allow_busy: bool = switch(
        "--allow-busy", "Measure even though other processes use the devices.")
    world_size: int | None = option(
        "--world-size", parse_int, "N",
        "Number of ranks that train together (default: one per GPU; on cpu one per node).")
    parallel: Parallel = option(
        "--parallel", _read_parallel, "N",
        "Number of probes that run at the same time, each on its own devices. auto: as many as"
        " the devices allow. On cpu they share cores and memory.", default="1")
    # fmt: on

    def __post_init__(self) -> None:
        for flag, value in (("--column", self.column), ("--row", self.row)):
            if value is not None and not self.recorded:
                raise UsageError(f"{flag} {value}: only with --device replay:FILE.csv")
        if self.world_size is not None and self.world_size < 1:
            raise UsageError(f"--world-size {self.world_size}: must be at least 1")

    @property
    def recorded(self) -> bool:
        return self.device.startswith("replay:")

    @property
    def emulated(self) -> str:
        """The cards to emulate, as in "8xH100"; empty for real devices."""
        kind, _, cards = self.device.partition(":")
        return cards if kind == "emulated" else ""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    # fmt: off
    launch: str | None = option(
        "--launch", choices.parse_launch, "LAUNCHER",
        f"Program that starts an agent on each node: {', '.join(choices.WRITTEN)} (default: this"
        " machine alone; slurm in a Slurm job of several nodes).")
    nodes: int | None = option(
        "--nodes", parse_int, "N",
        "Number of nodes (default: all nodes of the launcher).")
    interface: str | None = option(
        "--interface", as_it_is, "NAME",
        "Network interface or address of this host that the other nodes can reach (default: the"
        " one that this host uses to reach them).")
    allow_mixed: bool = switch(
        "--allow-mixed",
        "Accept nodes with different hardware. The smallest one sets the limits.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes}: must be at least 1")
