"""What the sensors of a GPU said over a while, on either side of the wire."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from autotune.wire.reports import Readings


class Sensors:
    """Read from the making of this on, whenever `sample` is called."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """`nvml` is the module pynvml, which has opened NVML. Raises its NVMLError."""
        self._nvml = nvml
        self._card = nvml.nvmlDeviceGetHandleByUUID(uuid)
        # The card slowed down because it was hot. A power cap is its normal working point, and
        # HwSlowdown is also set for a power brake and in changes of the P-state (nvml.h).
        self._thermal = (
            nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        )
        self.worst = Readings()
        """Of each reading so far."""

    def sample(self) -> None:
        """Read clock, power, temperature and what slows the card down now."""
        nvml = self._nvml
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        now = Readings(
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=reasons or 0,
            thermally_throttled=bool((reasons or 0) & self._thermal),
        )
        self.worst = Readings.worst([self.worst, now])

    def _ask(self, read: Callable[..., int], *arguments: int) -> int | None:
        # MIG instances and some virtual cards lack a sensor or another: each is read on its own.
        with suppress(self._nvml.NVMLError):
            return read(self._card, *arguments)
        return None
