"""A recorded grid: real measurements of another time, on a clock that only the replay moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.replay.device import RecordedDevice
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.lacking import check_energy
from autotune.space.axes import ASKED_AXES, AXES
from autotune.space.models import gpt
from autotune.space.options import FLAGS, Options
from autotune.space.space import Fixed, Limits, Space
from autotune.space.workload import Workload
from autotune.units import gib
from autotune.wire.budget import Clock, VirtualTime

_SHARED = [each.name for each in fields(Workload)
           if each.name not in ("recipe", "shapes", "length_mix")]  # fmt: skip
"""Names of what all candidates share, as options have them."""


class Recording:
    """The `Testbed` on which nothing is measured, and time is virtual.

    Raises:
        UsageError: no such file, no recorded grid, or nothing recorded in it yet.
    """

    device: Device
    learns = False  # the same replay ends the same

    def __init__(self, path: Path) -> None:
        self.grid = grid.read(path)
        if not self.grid.rows:
            raise UsageError(f"{path}: nothing is recorded in it yet; name another recorded grid")
        self.time = VirtualTime()
        self.device = RecordedDevice(self.grid)
        self.spec = f"replay:{path.absolute()}"
        name = self.device.infos[0].name
        self.remark = f"{name}: nothing was measured now, and time is virtual"
        self._unset = {
            "width": gpt.FAMILY.width_rule,
            "global_batch": "no global batch",
        }

    def fingerprint(self, space: Space) -> dict[str, Any]:
        """Of devices and software when they were recorded, and the name of the recording."""
        recorded: dict[str, Any] = self.grid.header["fingerprint"]
        return recorded | {"replayed": self.grid.path.name}

    def clock(self, budget_s: float, started: float) -> Clock:
        return Clock(budget_s, self.time(), self.time)

    def slots(self, options: Options, space: Space) -> int:
        assert options.devices.parallel != "auto", "`space` refuses that"
        return options.devices.parallel

    def beside(self, space: Space, slots: int) -> int:
        return 1  # what was recorded was alone

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        return {}  # there are no ranks

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        return [
            Replay(self.grid, space.limits, self.time, each.seed + slot, each.on_phase)
            for slot, each in enumerate(wirings)
        ]

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """What `options` leave of what was recorded; what they leave open is as recorded.

        Raises:
            UsageError: they ask for something that was not recorded.
        """
        check_energy(options, self.device)
        if options.devices.parallel == "auto":
            raise UsageError(
                f"--parallel auto: {self.grid.path} has no devices to count; write how many probes"
                " are to run at once, e.g. --parallel 4"
            )
        if options.space.length_mix is not None:
            raise UsageError(
                f"--length-mix {options.space.length_mix}: {self.grid.path} was recorded with"
                " samples of one length; leave it out"
            )
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
        shared = {name: getattr(self.grid.workload, name) for name in _SHARED}
        fixed = [
            *(Fixed(name, str(value or self._unset[name]), "as recorded")
              for name, value in shared.items() if value or name != "global_batch"),
            Fixed("device", self.device.infos[0].name, self.device.why),
            Fixed("capacity", f"{gib(limits.capacity_bytes)} a rank", capacity_why),
            Fixed("ceiling", f"{options.limits.ceiling:.0%}", "--ceiling"),
            *(Fixed(name, str(values[0]), "the only value")
              for name, values in axes.items() if len(values) == 1),
        ]  # fmt: skip
        return Space(
            workload=self.grid.workload,
            limits=limits,
            axes=axes,
            candidates=tuple(sorted(candidates)),
            fixed=tuple(fixed),
        )

    def _check_workload(self, options: Options) -> None:
        model = options.model
        flat = options.flat() | {"width": model.width, "vocab_size": model.vocab_size}
        for name in _SHARED:
            asked, recorded = flat[name], getattr(self.grid.workload, name)
            if asked in (None, "auto", recorded):
                continue
            of_gpt = name in ("width", "vocab_size")
            flag = f"--gpt {name}=" if of_gpt else f"{FLAGS[name].name} "
            instead = "leave it out" if recorded is None else f"use {flag}{recorded}"
            raise UsageError(
                f"{flag}{asked}: {self.grid.path} was recorded with"
                f" {self._unset[name] if recorded is None else recorded}; {instead}"
            )

    def _axes(self, options: Options) -> dict[str, tuple[Any, ...]]:
        axes: dict[str, tuple[Any, ...]] = {}
        for name, axis in AXES.items():
            values = options.space.axes.get(name)
            recorded = self._recorded(name)
            missing = [value for value in values or () if value not in recorded]
            if missing:
                raise UsageError(
                    f"{axis.flag} {missing[0]}: not recorded in {self.grid.path};"
                    f" use any of {axis.flag} {','.join(map(str, recorded))}"
                )
            axes[name] = values or recorded
        return {
            name: values
            for name, values in axes.items()
            if name not in ASKED_AXES or values != (AXES[name].plain,)
        }

    def _recorded(self, axis: str) -> tuple[Any, ...]:
        found = {getattr(row.candidate, axis) for row in self.grid.rows}
        return tuple(sorted(found, key=AXES[axis].order))

    def _limits(self, options: Options) -> tuple[Limits, str]:
        recorded, asked_bytes = self.grid.limits, options.limits.capacity_bytes
        if asked_bytes is not None and asked_bytes > recorded.capacity_bytes:
            raise UsageError(
                f"--capacity {gib(asked_bytes)}: {self.grid.path} was recorded with"
                f" {gib(recorded.capacity_bytes)} a rank;"
                f" use --capacity {recorded.capacity_bytes // 2**20}MiB or less"
            )
        limits = Limits(
            asked_bytes or recorded.capacity_bytes,
            options.limits.ceiling,
            recorded.host_capacity_bytes,
            options.limits.host_ceiling,
        )
        return limits, "as recorded" if asked_bytes is None else "--capacity"
