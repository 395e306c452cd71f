"""What is taken for heat."""

from __future__ import annotations

import pynvml

from probes.conditions import THERMAL


def test_only_thermal_slowdown_is_heat() -> None:
    assert THERMAL & pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    assert THERMAL & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    assert not THERMAL & pynvml.nvmlClocksThrottleReasonHwSlowdown
    assert not THERMAL & pynvml.nvmlClocksThrottleReasonSwPowerCap
