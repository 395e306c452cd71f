"""Imagined GPUs, for plans."""

from __future__ import annotations

from typing import Any, Literal

from autotune.device.cards import Card
from autotune.device.device import BusyProcess, DeviceInfo, EnergyCounters


class ImaginedDevice:
    """Some GPUs of one card, which nobody else uses. Nothing can run on it."""

    kind: Literal["cpu", "cuda"] = "cuda"
    why = "--gpus"
    remark = ""

    def __init__(self, card: Card, count: int) -> None:
        self.card = card
        self.infos = tuple(
            DeviceInfo(
                index=index, uuid=f"imagined-{index}", name=card.name,
                capacity_bytes=card.memory_bytes, bf16=card.bf16,
                fp8=card.capability >= (8, 9),
            )
            for index in range(count)
        )  # fmt: skip

    def in_use_bytes(self) -> tuple[int, ...]:
        return (0,) * len(self.infos)

    def other_processes(self) -> tuple[BusyProcess, ...]:
        return ()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        return {}

    def shares(self, groups: int, ranks: int) -> list[ImaginedDevice]:
        """The same device for each group."""
        return [self] * groups

    def energy(self) -> EnergyCounters:
        return EnergyCounters(lack="a plan knows nothing of energy, which has to be measured")

    def fingerprint(self) -> dict[str, Any]:
        return {"name": self.card.name, "count": len(self.infos)}
