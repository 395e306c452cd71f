"""Meters that measure nothing."""

from __future__ import annotations

from typing import Any

from autotune.wire.reports import Peaks
from probes.memory import Meter


class NoMeter(Meter):
    def limit(self, capacity_bytes: int) -> None: ...
    def reset(self) -> None: ...

    def peaks(self) -> Peaks:
        return Peaks.same(1)

    def held_bytes(self) -> int:
        return 0

    def foreign_bytes(self) -> int:
        return 7

    def taken_bytes(self, requested_bytes: int) -> int:
        return requested_bytes // 2


class Hearing(NoMeter):
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("limit", "built", "warmed", "reset", "peaks"):
            self.calls.append(name)
        return super().__getattribute__(name)
