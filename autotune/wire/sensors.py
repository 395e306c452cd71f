"""Readings of a GPU's sensors over an interval, for study and ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autotune.wire.reports import Readings


class Sensors:
    """The worst readings of all calls of `sample`."""

    def __init__(self, nvml: Any, uuid: str, own: Callable[[], Collection[int]]) -> None:
        """`nvml` is pynvml, opened; `own` returns process ids. Raises NVML's NVMLError."""
        self._own = own
        self._seen_us = int(time.time() * 1e6)
        self._others: list[float] = []
        self._nvml = nvml
        self._card = nvml.nvmlDeviceGetHandleByUUID(uuid)
        # The card slowed down because it was hot. Other reasons are normal: a power cap is its
        # working point, and changes of the P-state set HwSlowdown (nvml.h).
        self._thermal = (
            nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        )
        self.worst = Readings()

    def sample(self) -> None:
        """Read clock, power, temperature and reasons for throttling."""
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
        self._sample_others()
        others = sum(self._others) / len(self._others) if self._others else None
        self.worst = replace(Readings.worst([self.worst, now]), others_share=others)

    def _sample_others(self) -> None:
        """Read how busy other processes were since the last reading, if there is a new one.

        There is no reading if NVML lists none of our processes: in a container its ids may be the
        host's. NVML has a reading of each computing process about every second.
        """
        nvml, own = self._nvml, set(self._own())
        try:
            there = {each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(self._card)}
            if not own & there:
                return
            seen = nvml.nvmlDeviceGetProcessUtilization(self._card, self._seen_us)
        except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
            return  # no answer, or nobody computed
        if new := [each for each in seen if each.timeStamp > self._seen_us]:
            self._seen_us = max(each.timeStamp for each in new)
            percent = sum(each.smUtil for each in new if each.pid not in own)
            self._others.append(min(1.0, percent / 100))

    def _ask(self, read: Callable[..., int], *arguments: int) -> int | None:
        # MIG instances and some virtual cards lack some sensors, so each is read on its own.
        with suppress(self._nvml.NVMLError):
            return read(self._card, *arguments)
        return None
