"""The CPU meter in a process of its own, against allocations of known size."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 2**20


def in_fresh_process(code: str) -> list[int]:
    """The integers that `code` prints; `meter` is there, reset."""
    setup = "import torch\nfrom probes.memory import CpuMeter\nmeter = CpuMeter()\nmeter.reset()\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + code], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_the_peak_agrees_with_an_allocation_of_known_size() -> None:
    before, after = in_fresh_process(
        "print(meter.peaks().device_bytes)\n"
        "held = torch.ones(400 * 2**20 // 4)\n"
        "print(meter.peaks().device_bytes)"
    )
    assert after - before == pytest.approx(400 * MIB, rel=0.05)


@pytest.mark.slow
def test_the_peak_stays_when_the_memory_is_freed() -> None:
    held, freed = in_fresh_process(
        "held = torch.ones(400 * 2**20 // 4)\n"
        "print(meter.peaks().device_bytes)\n"
        "del held\n"
        "print(meter.peaks().device_bytes)"
    )
    assert freed == pytest.approx(held, rel=0.01)


@pytest.mark.slow
def test_a_reset_forgets_what_was_freed_in_large_and_in_small_pieces() -> None:
    before, after = in_fresh_process(
        "print(meter.peaks().device_bytes)\n"
        "large = torch.ones(400 * 2**20 // 4)\n"
        "small = [torch.ones(4096) for _ in range(10_000)]\n"
        "del large, small\n"
        "meter.reset()\n"
        "print(meter.peaks().device_bytes)"
    )
    assert after == pytest.approx(before, rel=0.05)


def test_an_allocation_beyond_the_capacity_fails_and_one_below_it_does_not() -> None:
    held, peak = in_fresh_process(
        "held = meter.peaks().device_bytes\n"
        "meter.limit(held + 400 * 2**20)\n"
        "torch.ones(100 * 2**20 // 4)\n"
        "try:\n"
        "    torch.ones(500 * 2**20 // 4)\n"
        "except RuntimeError as error:\n"
        "    assert 'allocate memory' in str(error)\n"
        "    meter.lift()\n"
        "    print(held, meter.peaks().device_bytes)"
    )
    assert 90 * MIB < peak - held < 400 * MIB


@pytest.mark.slow
def test_a_process_larger_than_the_capacity_is_out_of_memory_before_it_builds() -> None:
    (held,) = in_fresh_process(
        "try:\n"
        "    meter.limit(64 * 2**20)\n"
        "except MemoryError:\n"
        "    print(meter.peaks().device_bytes)"
    )
    assert held > 64 * MIB


@pytest.mark.slow
def test_the_limit_can_be_lifted() -> None:
    capacity, peak = in_fresh_process(
        "capacity = meter.peaks().device_bytes + 100 * 2**20\n"
        "meter.limit(capacity)\n"
        "meter.lift()\n"
        "torch.ones(400 * 2**20 // 4)\n"
        "print(capacity, meter.peaks().device_bytes)"
    )
    assert peak > capacity
