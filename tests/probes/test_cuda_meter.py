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


def test_a_peak_is_what_was_reserved_and_what_is_outside_the_allocator(card: Card) -> None:
    meter = rank(card)
    assert probe(card, meter) == 350 * MIB
    assert meter.foreign_bytes() == 0


def test_what_libraries_take_in_their_first_steps_is_the_ranks(card: Card) -> None:
    meter = rank(card)
    card.outside += 40 * MIB
    assert probe(card, meter) == 390 * MIB
    assert meter.foreign_bytes() == 0


def test_others_memory_is_not_the_ranks_and_its_change_is_told(card: Card) -> None:
    meter = rank(card)

    def come() -> None:
        card.others += 300 * MIB

    assert probe(card, meter, during=come) == 350 * MIB
    assert meter.foreign_bytes() == 300 * MIB


def test_what_others_give_back_is_a_change_too(card: Card) -> None:
    card.others = 700 * MIB
    meter = rank(card)

    def go() -> None:
        card.others -= 300 * MIB

    probe(card, meter, during=go)
    assert meter.foreign_bytes() == 300 * MIB


def test_what_a_library_takes_later_is_the_ranks_as_long_as_it_is_little(card: Card) -> None:
    meter = rank(card)

    def load() -> None:
        card.outside += 8 * MIB

    assert probe(card, meter, during=load) == 358 * MIB


@pytest.mark.parametrize(
    ("ranks", "others", "told"), [(1, 300, 200), (1, 80, 0), (2, 300, 150), (2, 130, 0)]
)
def test_memory_at_build_may_be_others(card: Card, ranks: int, others: int, told: int) -> None:
    meter = CudaMeter("GPU-0", ranks)
    card.outside = 50 * MIB
    meter.limit(CAPACITY)
    card.hold(200 * MIB)
    card.others += others * MIB
    meter.built()
    probe(card, meter)
    assert meter.foreign_bytes() == told * MIB


def test_others_that_were_there_before_the_rank_do_not_matter(card: Card) -> None:
    card.others = 700 * MIB
    assert probe(card, rank(card)) == 350 * MIB


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
