"""What a device's counters say that it used."""

from __future__ import annotations

import socket
from pathlib import Path

import pynvml
import pytest

from autotune.wire import reports
from autotune.wire.energy import NOTHING, Counters, EnergyMeter
from probes import conditions
from probes.conditions import counters
from tests.support import rapl
from tests.support.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture(autouse=True)
def minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock."""
    ticks = iter(range(0, 10**6, 60))
    monkeypatch.setattr("autotune.wire.energy.time.monotonic", lambda: float(next(ticks)))


def test_the_energy_of_all_packages_is_that_of_the_host(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path, 2)
    used = EnergyMeter(counters(str(folder), "cpu"))
    rapl.count(folder, 2_000_000)
    rapl.count(folder, 500_000, package=1)
    used.sample()
    assert used.used() == reports.Energy(2.5, socket.gethostname())


def test_a_counter_that_began_anew_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path, range_uj=10_000_000)
    rapl.count(folder, 9_000_000)
    used = EnergyMeter(counters(str(folder), "cpu"))
    for energy_uj in (9_500_000, 1_000_000, 4_000_000, 500_000):  # round twice
        rapl.count(folder, energy_uj)
        used.sample()
    found = used.used()
    assert found is not None
    assert found.joules == pytest.approx(11.5)


def test_a_counter_that_fails_once_says_nothing_from_then_on(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path)
    used = EnergyMeter(counters(str(folder), "cpu"))
    for text in ("1000000", "", "2000000"):
        (folder / "intel-rapl:0" / "energy_uj").write_text(text)
        used.sample()
    assert used.used() is None


def test_what_passes_between_steps_is_not_theirs(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path)
    used = EnergyMeter(counters(str(folder), "cpu"))
    rapl.count(folder, 6_000_000)
    used.sample()
    # 6 J in a minute, by the clock of these tests.
    assert used.used(of_s=15.0) == reports.Energy(1.5, socket.gethostname())


def test_without_counters_nothing_is_said() -> None:
    used = EnergyMeter(NOTHING)
    used.sample()
    assert used.used() is None
    assert counters("", "cpu").counters == ()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu(uuid="GPU-1", energy_mj=5_000_000)
    fake = FakeNvml(FakeGpu(uuid="GPU-0"), made)
    fake.NVMLError = pynvml.NVMLError  # type: ignore[attr-defined]
    monkeypatch.setattr(conditions, "pynvml", fake)
    return made


def test_a_gpu_is_counted_by_nvml(gpu: FakeGpu) -> None:
    used = EnergyMeter(counters("nvml", "GPU-1"))
    gpu.energy_mj = 5_012_500
    used.sample()
    assert used.used() == reports.Energy(12.5, "GPU-1")


def test_a_gpu_whose_counter_is_gone_says_nothing(gpu: FakeGpu) -> None:
    used = EnergyMeter(counters("nvml", "GPU-1"))
    gpu.energy_mj = None
    used.sample()
    assert used.used() is None


def test_a_time_too_short_for_the_counter_says_nothing(gpu: FakeGpu) -> None:
    found = counters("nvml", "GPU-1")
    slow = Counters(found.covers, found.counters, update_s=7.0)  # a minute has not ten of them
    used = EnergyMeter(slow)
    gpu.energy_mj = 6_000_000
    used.sample()
    assert used.used() is None
    used.sample()
    assert used.used() is not None
