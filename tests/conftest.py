"""Fixtures that several tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import settings

from autotune.device.device import BusyProcess, DeviceInfo, EnergyCounters
from tests.support.postgres import Server, binaries, server

# No test depends on the machine's speed, or tries other examples than the last time.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# Tests side by side have more threads than the machine has cores: those that wait are not to spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What a shell starts in the background, or nohup, ignores signals; studies would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)


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

    def shares(self, groups: int, ranks: int) -> list[FakeDevice]:
        return [self] * groups

    def energy(self) -> EnergyCounters:
        return EnergyCounters(lack="no counter")

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": self.kind}


@pytest.fixture
def cpu() -> FakeDevice:
    """A host of 16 GiB."""
    return FakeDevice(
        "cpu",
        (
            DeviceInfo(
                index=0, uuid="cpu", name="a processor", capacity_bytes=16 * 2**30, bf16=False
            ),
        ),
    )


@pytest.fixture
def gpus() -> FakeDevice:
    """Two GPUs, of 80 and 40 GiB."""
    return FakeDevice(
        "cuda",
        (
            DeviceInfo(index=0, uuid="GPU-0", name="a GPU", capacity_bytes=80 * 2**30, bf16=True),
            DeviceInfo(
                index=1, uuid="GPU-1", name="a smaller GPU", capacity_bytes=40 * 2**30, bf16=True
            ),
        ),
    )


@pytest.fixture
def postgres() -> Iterator[Server]:
    """A server of PostgreSQL with nothing in it."""
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL (apt-get install postgresql)")
    with server(programs) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def end_kept_servers() -> Iterator[None]:
    """What `tests.support.pools` keeps for all tests is gone after the last."""
    yield
    pools = sys.modules.get("tests.support.pools")
    if pools is not None and pools.kept.cache_info().currsize:
        pools.kept().end()


@pytest.fixture(scope="module", autouse=True)
def end_job_servers() -> Iterator[None]:
    """What `tests.support.jobs` keeps for the tests of a module is gone after the last."""
    yield
    jobs = sys.modules.get("tests.support.jobs")
    if jobs is not None:
        jobs.end_kept_servers()


def pytest_collection_finish() -> None:
    """What was imported and collected stays: who collects garbage need not look through it."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
