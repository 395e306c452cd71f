"""The device that a grid was recorded on, as far as the grid describes it."""

from __future__ import annotations

from typing import Any

from autotune.device.device import DeviceInfo, EnergyCounters
from autotune.device.imagined import ImaginedDevice
from autotune.measure.replay.grid import COVERS, Grid


class RecordedDevice(ImaginedDevice):
    """Nobody uses it, and nothing runs on it."""

    why = "--device"

    def __init__(self, recorded: Grid) -> None:
        self._recorded = recorded
        self.kind = recorded.device_kind
        name = f"replay of {recorded.path.name}, recorded on {recorded.device}"
        bf16 = recorded.workload.dtype == "bf16"
        self.infos = (
            DeviceInfo(
                index=0,
                uuid="replay",
                name="".join(c if c.isprintable() else "?" for c in name),
                capacity_bytes=recorded.limits.capacity_bytes,
                bf16=bf16,
            ),
        )

    def energy(self) -> EnergyCounters:
        """Counters for the energy of recorded steps, if the grid has it."""
        reports = [row.report for row in self._recorded.rows if row.report is not None]
        if any(report.energy is None for report in reports):
            return EnergyCounters(lack="the recording has no energy in it")
        return EnergyCounters(COVERS)

    def fingerprint(self) -> dict[str, Any]:
        devices: dict[str, Any] = self._recorded.header["fingerprint"]["devices"]
        return devices
