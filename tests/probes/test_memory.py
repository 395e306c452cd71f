"""The CPU meter in a process of its own, against allocations of known size."""

from __future__ import annotations

import pytest

from tests.support.programs import python

MIB = 2**20


def in_fresh_process(code: str) -> list[int]:
    """The integers that `code` prints; `meter` is there, reset."""
    setup = "import torch\nfrom probes.memory import CpuMeter\nmeter = CpuMeter()\nmeter.reset()\n"
    return [int(word) for word in python("-c", setup + code).stdout.split()]


def test_a_peak_has_the_known_size_stays_and_is_forgotten_at_a_reset() -> None:
    before, held, freed, reset = in_fresh_process(
        "print(meter.peaks().device_bytes)\n"
        "large = torch.ones(400 * 2**20 // 4)\n"
        "print(meter.peaks().device_bytes)\n"
        "del large\n"
        "print(meter.peaks().device_bytes)\n"
        "small = [torch.ones(4096) for _ in range(10_000)]\n"
        "del small\n"
        "meter.reset()\n"
        "print(meter.peaks().device_bytes)"
    )
    assert held - before == pytest.approx(400 * MIB, rel=0.05)
    assert freed == pytest.approx(held, rel=0.01)
    assert reset == pytest.approx(before, rel=0.05)


def test_an_allocation_beyond_the_capacity_fails_until_the_limit_is_lifted() -> None:
    """And a limit below what is held fails at once."""
    held, peak, lifted, still = in_fresh_process(
        "held = meter.peaks().device_bytes\n"
        "meter.limit(held + 400 * 2**20)\n"
        "torch.ones(100 * 2**20 // 4)\n"
        "try:\n"
        "    torch.ones(500 * 2**20 // 4)\n"
        "except RuntimeError as error:\n"
        "    assert 'allocate memory' in str(error)\n"
        "    meter.lift()\n"
        "    print(held, meter.peaks().device_bytes)\n"
        "torch.ones(500 * 2**20 // 4)\n"
        "print(meter.peaks().device_bytes)\n"
        "try:\n"
        "    meter.limit(64 * 2**20)\n"
        "except MemoryError:\n"
        "    print(meter.peaks().device_bytes)"
    )
    assert 90 * MIB < peak - held < 400 * MIB
    assert lifted - held > 400 * MIB
    assert still > 64 * MIB
