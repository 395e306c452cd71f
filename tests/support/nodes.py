"""Nodes that are not there, as far as seats go."""

from __future__ import annotations

from typing import Any


class FakeNode:
    """So many devices."""

    refreshed_s = 0.0
    energy_at = ""
    address = "127.0.0.1"

    def __init__(self, name: str, devices: int = 1) -> None:
        self.name = name
        self.uuids = tuple(f"{name}-{number}" for number in range(devices))
        self.in_use = [0] * devices
        self.lost = ""

    def heard_since(self, moment: float) -> bool:
        return True

    def in_use_bytes(self) -> tuple[int, ...]:
        return tuple(self.in_use)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{self.name} is asked for {name}")
