"""A recorded grid in the place of a device, with a clock of its own: nothing is measured."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from autotune.budget import VirtualTime
from autotune.device import BusyProcess, DeviceInfo
from autotune.options import Checkpointing, Offload, Options, UsageError, gib
from autotune.replay import grid
from autotune.space.space import AXES, Fixed, Limits, Space, Workload

_FLAGS = {name: "--" + name.replace("_", "-") for name in AXES} | {"zero_stage": "--zero"}
_UNSET = {"width": "64 x depth", "global_batch": "no global batch"}


class ReplayDevice:
    """The device that a grid was recorded on, as far as the grid tells of it.

    Raises:
        UsageError: no such file, no recorded grid, or nothing recorded in it yet.
    """

    kind: Literal["cpu", "cuda"]
    infos: tuple[DeviceInfo, ...]

    def __init__(self, path: Path, why: str = "--device") -> None:
        self.grid = grid.read(path)
        if not self.grid.rows:
            raise UsageError(f"{path}: nothing is recorded in it yet; name another recorded grid")
        self.time = VirtualTime()
        self.kind = self.grid.kind
        self.why = why
        file = "".join(c if c.isprintable() else "?" for c in path.name)
        name = f"replay of {file}, recorded on {self.grid.device}"
        bf16 = self.grid.workload.dtype == "bf16"
        self.infos = (DeviceInfo(0, "replay", name, self.grid.limits.capacity_bytes, bf16),)

    def in_use_bytes(self) -> tuple[int, ...]:
        """Always 0."""
        return (0,)

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """None."""
        return ()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """Nothing: there are no ranks."""
        return {}

    def fingerprint(self) -> dict[str, Any]:
        """Of the devices that were recorded."""
        devices: dict[str, Any] = self.grid.header["fingerprint"]["devices"]
        return devices

    def study_fingerprint(self) -> dict[str, Any]:
        """Of devices and software when they were recorded, and the name of the recording."""
        recorded: dict[str, Any] = self.grid.header["fingerprint"]
        return recorded | {"replayed": self.grid.path.name}

    def space(self, options: Options) -> Space:
        """What `options` leave of what was recorded; what they leave open is as recorded.

        Raises:
            UsageError: they ask for something that was not recorded.
        """
        self._check_workload(options)
        axes = self._axes(options)
        candidates = {
            row.candidate
            for row in self.grid.rows
            if all(getattr(row.candidate, name) in values for name, values in axes.items())
            and self.grid.workload.grad_accum(row.candidate) is not None
        }
        if not candidates:
            raise UsageError(
                f"{self.grid.path}: holds no candidate of all these axes; narrow fewer of them"
            )
        limits, capacity_why = self._limits(options)
        shared = {each.name: getattr(self.grid.workload, each.name) for each in fields(Workload)}
        fixed = [
            *(Fixed(name, str(value or _UNSET[name]), "as recorded")
              for name, value in shared.items() if value or name != "global_batch"),
            Fixed("device", self.infos[0].name, self.why),
            Fixed("capacity", f"{gib(limits.capacity_bytes)} a rank", capacity_why),
            Fixed("ceiling", f"{options.ceiling:.0%}", "--ceiling"),
            *(Fixed(name, str(values[0]), "the only value")
              for name, values in axes.items() if len(values) == 1),
        ]  # fmt: skip
        return Space(self.grid.workload, limits, axes, tuple(sorted(candidates)), tuple(fixed))

    def _check_workload(self, options: Options) -> None:
        for name in (each.name for each in fields(Workload)):
            asked, recorded = getattr(options, name), getattr(self.grid.workload, name)
            if asked in (None, "auto", recorded):
                continue
            flag = "--" + name.replace("_", "-")
            instead = f"leave {flag} out" if recorded is None else f"use {flag} {recorded}"
            raise UsageError(
                f"{flag} {asked}: {self.grid.path} was recorded with"
                f" {_UNSET[name] if recorded is None else recorded}; {instead}"
            )

    def _axes(self, options: Options) -> dict[str, tuple[Any, ...]]:
        axes: dict[str, tuple[Any, ...]] = {}
        asked = (
            options.depth, options.seq_len, options.micro_batch,
            options.zero, options.offload, options.checkpointing,
        )  # fmt: skip
        for name, values in zip(AXES, asked, strict=True):
            recorded = self._recorded(name)
            missing = [value for value in values or () if value not in recorded]
            if missing:
                raise UsageError(
                    f"{_FLAGS[name]} {missing[0]}: not recorded in {self.grid.path};"
                    f" use any of {_FLAGS[name]} {','.join(map(str, recorded))}"
                )
            axes[name] = values or recorded
        return axes

    def _recorded(self, axis: str) -> tuple[Any, ...]:
        """Values of an axis, numbers ascending and words in the order of their type."""
        found = {getattr(row.candidate, axis) for row in self.grid.rows}
        words: dict[str, tuple[Any, ...]] = {
            "offload": get_args(Offload), "checkpointing": get_args(Checkpointing),
        }  # fmt: skip
        return tuple(word for word in words.get(axis, sorted(found)) if word in found)

    def _limits(self, options: Options) -> tuple[Limits, str]:
        recorded, asked_bytes = self.grid.limits, options.capacity_bytes
        if asked_bytes is not None and asked_bytes > recorded.capacity_bytes:
            raise UsageError(
                f"--capacity {gib(asked_bytes)}: {self.grid.path} was recorded with"
                f" {gib(recorded.capacity_bytes)} a rank;"
                f" use --capacity {recorded.capacity_bytes // 2**20}MiB or less"
            )
        limits = Limits(
            asked_bytes or recorded.capacity_bytes,
            options.ceiling,
            recorded.host_capacity_bytes,
            options.host_ceiling,
        )
        return limits, "as recorded" if asked_bytes is None else "--capacity"
