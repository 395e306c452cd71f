"""What counts as a rank's memory on a GPU, with numbers in the place of NVML and torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from probes import memory
from probes.memory import CudaMeter

MIB = 2**20
CAPACITY = 1000 * MIB


class Card:
    """One device: what its parts hold now."""

    def __init__(self) -> None:
        self.others = 100 * MIB
        self.outside = 0
        self.reserved = 0
        self.reserved_peak = 0
        self.pinned_peak = 0

    def forget_pinned(self) -> None:
        self.pinned_peak = 0

    @property
    def used(self) -> int:
        return self.others + self.outside + self.reserved

    def hold(self, reserved: int) -> None:
        self.reserved = reserved
        self.reserved_peak = max(self.reserved_peak, reserved)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    def reset() -> None:
        card.reserved_peak = card.reserved

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: card,
    )
    monkeypatch.setattr(memory, "pynvml", nvml)
    monkeypatch.setattr(memory, "_KERNELS_BYTES", 100 * MIB)
    monkeypatch.setattr(memory, "_NCCL_BYTES", 50 * MIB)
    fakes: dict[str, Callable[..., object]] = {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": reset,
        "memory_reserved": lambda: card.reserved,
        "max_memory_reserved": lambda: card.reserved_peak,
        "max_memory_allocated": lambda: card.reserved_peak,
        "memory_stats": dict,
        "host_memory_stats": lambda: {"allocated_bytes.peak": card.pinned_peak},
        "reset_peak_host_memory_stats": card.forget_pinned,
        "set_per_process_memory_fraction": lambda share: None,
        "get_device_properties": lambda: SimpleNamespace(total_memory=CAPACITY),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    real = torch.zeros

    def unpinned(*size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        return real(*size, dtype=dtype)

    monkeypatch.setattr(torch, "zeros", unpinned)
    return card


def rank(card: Card) -> CudaMeter:
    """A meter whose engine stands: 50 MiB of context, 200 MiB of weights."""
    meter = CudaMeter("GPU-0", 1)
    card.outside = 50 * MIB
    meter.limit(CAPACITY)
    card.hold(200 * MIB)
    meter.built()
    return meter


def probe(card: Card, meter: CudaMeter, *, during: Callable[[], None] = lambda: None) -> int:
    """A probe that reserves 300 MiB at its peak; `during` happens in its timed steps."""
    meter.reset()
    card.hold(300 * MIB)
    meter.sample()
    meter.warmed()
    during()
    meter.sample()
    card.hold(200 * MIB)
    return meter.peaks().device_bytes


@pytest.mark.parametrize(
    ("before", "first", "during", "expected"),
    [
        (100, 0, (0, 0), (350, 0)),  # what was reserved, and what is outside the allocator
        (100, 40, (0, 0), (390, 0)),  # libraries take it in their first steps
        (100, 0, (300, 0), (350, 300)),
        (700, 0, (-300, 0), (350, 300)),  # what others give back is a change, too
        (100, 0, (0, 8), (358, 0)),  # a library takes little later on
        (700, 0, (0, 0), (350, 0)),  # others were there before the rank
    ],
)
def test_a_peak_is_the_ranks_own_and_changes_of_others_are_told(
    card: Card, before: int, first: int, during: tuple[int, int], expected: tuple[int, int]
) -> None:
    (others, outside), (peak, told) = during, expected
    card.others = before * MIB
    meter = rank(card)
    card.outside += first * MIB

    def change() -> None:
        card.others += others * MIB
        card.outside += outside * MIB

    assert probe(card, meter, during=change) == peak * MIB
    if not outside:
        assert meter.foreign_bytes() == told * MIB


@pytest.mark.parametrize(
    ("ranks", "before", "more", "told"),
    [
        *((1, 50, 300, 200), (1, 50, 80, 0), (2, 50, 300, 150), (2, 50, 130, 0)),
        # A second group of all ranks may hold as much as the first.
        *((1, 300, 300, 200), (2, 300, 300, 0)),
    ],
)
def test_memory_at_build_may_be_others(
    card: Card, ranks: int, before: int, more: int, told: int
) -> None:
    meter = CudaMeter("GPU-0", ranks)
    card.outside = before * MIB
    meter.limit(CAPACITY)
    card.hold(200 * MIB)
    card.others += more * MIB
    meter.built()
    probe(card, meter)
    assert meter.foreign_bytes() == told * MIB


def test_a_probe_that_ended_in_its_warm_up_blames_nobody(card: Card) -> None:
    meter = rank(card)
    meter.reset()
    card.outside += 40 * MIB
    meter.sample()
    assert meter.foreign_bytes() == 0
    assert meter.peaks().device_bytes == 290 * MIB


def test_pinned_memory_of_an_earlier_probe_is_not_this_ones(card: Card) -> None:
    meter = rank(card)
    meter._pinned_is_resident = False  # as some drivers have it
    probe(card, meter)
    resident = meter.peaks().host_bytes
    card.pinned_peak = 2**40
    assert meter.peaks().host_bytes > resident + 2**39
    probe(card, meter)
    assert meter.peaks().host_bytes < 2**39


@pytest.mark.parametrize("phase", ["build", "first probe", "second probe"])
@pytest.mark.parametrize(
    ("others", "asked", "taken"), [(300, 400, 300), (0, 960, 0), (300, 960, 0)]
)
def test_where_others_took_the_device_memory_ran_out_for_them(
    card: Card, phase: str, others: int, asked: int, taken: int
) -> None:
    meter = CudaMeter("GPU-0", 1)
    card.outside = 50 * MIB
    meter.limit(CAPACITY)
    if phase != "build":
        card.hold(200 * MIB)
        meter.built()
    if phase == "second probe":
        probe(card, meter)
    card.others += others * MIB
    first_use = 0 if phase == "second probe" else min(100, taken)
    assert meter.taken_bytes(asked * MIB) == (taken - first_use) * MIB
