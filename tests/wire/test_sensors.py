"""What sensors of GPUs show over a while."""

from __future__ import annotations

import pynvml

from autotune.wire.reports import Readings
from autotune.wire.sensors import Sensors
from tests.support.fake_nvml import FakeGpu, FakeNvml

HOT = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
CAPPED = pynvml.nvmlClocksThrottleReasonSwPowerCap
SLOWED = pynvml.nvmlClocksThrottleReasonHwSlowdown


def test_the_worst_of_every_reading_is_kept() -> None:
    gpu = FakeGpu(uuid="GPU-0")
    sensors = Sensors(FakeNvml(gpu), "GPU-0", list)
    for gpu.clock_mhz, gpu.power_mw, gpu.temperature_c, gpu.reasons in (
        (1980, 500_000, 60, 0), (1400, 650_500, 71, CAPPED), (1700, 600_000, 66, HOT),
    ):  # fmt: skip
        sensors.sample()
    assert sensors.worst == Readings(
        sm_clock_mhz=1400,
        power_w=650.5,
        temperature_c=71,
        throttle_reasons=CAPPED | HOT,
        thermally_throttled=True,
    )


def test_a_power_cap_or_brake_is_no_heat() -> None:
    gpu = FakeGpu(uuid="GPU-0", reasons=CAPPED | SLOWED)
    sensors = Sensors(FakeNvml(gpu), "GPU-0", list)
    sensors.sample()
    assert not sensors.worst.thermally_throttled
    gpu.reasons = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    sensors.sample()
    assert sensors.worst.thermally_throttled


def test_a_sensor_that_is_not_there_hides_no_other() -> None:
    instance = FakeGpu(uuid="MIG-0", clock_mhz=None, power_mw=None, temperature_c=55, reasons=None)
    sensors = Sensors(FakeNvml(instance), "MIG-0", list)
    sensors.sample()
    assert sensors.worst == Readings(temperature_c=55, throttle_reasons=0)


def test_the_worst_of_several_devices() -> None:
    cool = Readings(sm_clock_mhz=1980, power_w=400.0, temperature_c=50, throttle_reasons=CAPPED)
    hot = Readings(
        sm_clock_mhz=900, power_w=300.0, temperature_c=90, throttle_reasons=HOT,
        thermally_throttled=True,
    )  # fmt: skip
    assert Readings.worst([cool, hot, Readings()]) == Readings(
        sm_clock_mhz=900,
        power_w=400.0,
        temperature_c=90,
        throttle_reasons=CAPPED | HOT,
        thermally_throttled=True,
    )
    assert Readings.worst([]) == Readings()
