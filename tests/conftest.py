"""Fixtures that several tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import settings

from autotune.device import BusyProcess, DeviceInfo

settings.register_profile("no deadline", deadline=None)  # no test depends on the machine's speed
settings.load_profile("no deadline")


@dataclass
class FakeDevice:
    """Devices as they are described, with nobody on them."""

    kind: Literal["cpu", "cuda"]
    infos: tuple[DeviceInfo, ...]
    why: str = "--device"

    def in_use_bytes(self) -> tuple[int, ...]:
        return (0,) * len(self.infos)

    def other_processes(self) -> tuple[BusyProcess, ...]:
        return ()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        return {}

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": self.kind}


@pytest.fixture
def cpu() -> FakeDevice:
    """A host of 16 GiB."""
    return FakeDevice("cpu", (DeviceInfo(0, "cpu", "a processor", 16 * 2**30, False),))


@pytest.fixture
def gpus() -> FakeDevice:
    """Two GPUs, of 80 and 40 GiB."""
    return FakeDevice(
        "cuda",
        (
            DeviceInfo(0, "GPU-0", "a GPU", 80 * 2**30, True),
            DeviceInfo(1, "GPU-1", "a smaller GPU", 40 * 2**30, True),
        ),
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
