"""A recorded grid: earlier real measurements, on a clock that only the replay moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.replay import grid, table
from autotune.measure.replay.device import RecordedDevice
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.basis import Basis, limits_of
from autotune.measure.testbed.candidates import asked_axes, axes_of
from autotune.measure.testbed.lacking import check_energy
from autotune.space.axes import AXES
from autotune.space.models import gpt
from autotune.space.options import FLAGS, Options
from autotune.space.options.flag import listed
from autotune.space.space import Fixed, Space
from autotune.space.workload import Workload
from autotune.wire.budget import Clock, VirtualTime

_SHARED = [each.name for each in fields(Workload)
           if each.name not in ("recipe", "shapes", "length_mix")]  # fmt: skip
"""Names, as in options, of the settings that all candidates share."""
_UNSET = {"width": gpt.FAMILY.width_rule, "global_batch": "no global batch"}


class Recording:
    """The `Testbed` on which nothing is measured, and time is virtual. Raises UsageError: no such
    file, no recorded grid, or an empty one."""

    device: Device
    learns = False  # so a replay always ends the same

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str] | None = None,
        rows: Mapping[str, str] | None = None,
    ) -> None:
        """`columns` of a foreign table by their meaning; only `rows` with these values count."""
        if (text := grid.text_of(path)).startswith("# {"):
            if columns or rows:
                flag = "--column" if columns else "--row"
                raise UsageError(f"{flag}: {path} is a recorded grid; leave it out")
            self.grid = grid.read(path)
        else:
            self.grid = table.read(path, text, columns or {}, rows or {})
        if not self.grid.rows:
            raise UsageError(f"{path}: it has no recordings yet; name another grid")
        self.time = VirtualTime()
        self.device = RecordedDevice(self.grid)
        self.spec = f"replay:{path.absolute()}"
        name = self.device.infos[0].name
        self.remark = f"{name}: nothing was measured now, and time is virtual"

    def fingerprint(self, space: Space) -> dict[str, Any]:
        """The recorded devices and software, and the name of the recording."""
        recorded: dict[str, Any] = self.grid.header["fingerprint"]
        return recorded | {"replayed": self.grid.path.name}

    def clock(self, budget_s: float, started: float) -> Clock:
        return Clock(budget_s, self.time(), self.time)

    def slots(self, options: Options, space: Space) -> int:
        assert options.devices.parallel != "auto", "`space` refuses that"
        return options.devices.parallel

    def beside(self, space: Space, slots: int) -> int:
        return 1  # each recorded group ran alone

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        return {}  # there are no ranks

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        return [
            Replay(self.grid, space.limits, self.time, each.seed + slot, each.on_phase)
            for slot, each in enumerate(wirings)
        ]

    def space(self, options: Options, known: Workload | None = None) -> Space:
        """The recorded space, narrowed by `options`. Raises UsageError if the options ask for
        something that was not recorded."""
        check_energy(options, self.device)
        self._check_asked(options)
        axes, workload, recorded = self._axes(options), self.grid.workload, self.grid.limits
        points = {
            row.candidate
            for row in self.grid.rows
            if all(getattr(row.candidate, name) in values for name, values in axes.items())
        }
        if not points:
            raise UsageError(
                f"{self.grid.path}: has no candidate with all these values; restrict fewer axes"
            )
        limits, capacity_why = limits_of(
            options, recorded.capacity_bytes, "as recorded", recorded.host_capacity_bytes,
            f"{self.grid.path} was recorded with",
        )  # fmt: skip
        if not self.grid.has_ceiling:  # each run fits
            limits = replace(limits, ceiling=1.0)
        shared = {name: getattr(workload, name) or _UNSET.get(name) for name in _SHARED}
        shared = {name: value for name, value in shared.items() if value is not None}
        return Basis(
            workload=workload,
            limits=limits,
            capacity_why=capacity_why,
            axes=axes,
            points=points,
            facts=[
                *(Fixed(name, str(value), "as recorded") for name, value in shared.items()
                  if (name != "global_batch" or workload.global_batch)
                  and not (workload.of_script and name in ("width", "vocab_size"))),
                Fixed("device", self.device.infos[0].name, self.device.why),
            ],
        ).space(options)  # fmt: skip

    def _check_asked(self, options: Options) -> None:
        """Raises `UsageError` for values that no candidate of the recording has."""
        path, model = self.grid.path, options.model
        if options.devices.parallel == "auto":
            raise UsageError(
                f"--parallel auto: {path} has no devices to count; write a number, e.g."
                " --parallel 4"
            )
        if options.space.length_mix is not None:
            raise UsageError(
                f"--length-mix {options.space.length_mix}: {path} was recorded with samples of one"
                " length; leave it out"
            )
        if options.space.routing is not None:
            raise UsageError(
                f"--routing {options.space.routing}: {path} was recorded with the routing that it"
                " has; leave it out"
            )
        if options.space.eval_batch is not None or options.space.save is not None:
            raise UsageError(f"--eval-batch, --save: {path} has training alone; leave them out")
        of_gpt = {"width": model.width, "vocab_size": model.vocab_size}
        for name, asked in [(name, (options.flat() | of_gpt)[name]) for name in _SHARED]:
            recorded = getattr(self.grid.workload, name)
            plain = "gpt" if self.grid.workload.of_script else None  # the default of --model
            if asked in (None, "auto", plain, recorded):
                continue
            flag = f"--gpt {name}=" if name in of_gpt else f"{FLAGS[name].name} "
            instead = "leave it out" if recorded is None else f"use {flag}{recorded}"
            was = _UNSET[name] if recorded is None else recorded
            raise UsageError(f"{flag}{asked}: {path} was recorded with {was}; {instead}")

    def _axes(self, options: Options) -> dict[str, tuple[Any, ...]]:
        recorded = {
            name: tuple(sorted({getattr(row.candidate, name) for row in self.grid.rows},
                               key=axis.order))
            for name, axis in AXES.items()
        }  # fmt: skip
        lengths = options.space.axes.get("seq_len", recorded["seq_len"])
        asked = asked_axes(options, lengths)
        for name, values in asked.items():
            if missing := [value for value in values if value not in recorded[name]]:
                flag = AXES[name].flag
                raise UsageError(
                    f"{flag} {missing[0]}: not recorded in {self.grid.path};"
                    f" use any of {flag} {listed(recorded[name])}"
                )
        return axes_of(recorded | asked)
