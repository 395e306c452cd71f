"""Rates of large work on a card, for the clock of emulated cards (`csrc/clock.c`).

Products in 16 bits: shares of the data sheet's rate. Sources: "Maximum Achievable Matmul FLOPS"
(stas00/ml-engineering, compute/accelerator: A100 0.86, H100 and H200 0.80, B200 0.78) and the
medians of mag-/gpu_benchmark. Training reaches less than such a best shape, by its power limit.

Memory: 0.9 of the data sheet; copies on H100 NVL reached 0.906. FlashAttention-2, which torch has
built in: Dao-AILab/flash-attention #2688 (H100, torch 2.10: 310 TFLOP/s forward and 299 backward
at 64 channels) and gpu-mode/ring-attention #10 (RTX A5000: 82 and 77 of 111).

Links: PCI Express, and NVLink's data sheets in one direction. NCCL's rings reach 0.8 of these
(NVIDIA/nccl-tests #212: 370 of 450 GB/s on H100, #149: 230 of 300 on A100).
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.device.cards import Card

SHARED = ("half_rate", "fp32_rate", "attention_rate", "attention_backward_rate", "memory_rate")
"""Rates that instances of one card share."""

_TERA, _GIGA = 1e12, 1e9
_UNKNOWN = (312 * _TERA, 2039 * _GIGA)
"""Rates of a card of which only the memory is known: an A100's."""
_PRODUCTS = {
    "A100": 0.86, "A30": 0.86, "H100": 0.80, "H100-PCIe": 0.66, "H100-NVL": 0.58, "H200": 0.80,
    "GH200": 0.85, "B200": 0.78, "L4": 0.75, "L40": 0.94, "L40S": 0.70, "RTX6000Ada": 0.76,
    "RTX4090": 1.08, "T4": 0.4, "V100": 0.72,
}  # fmt: skip
_OTHER_PRODUCTS = 0.85
_FP32_TERA = {
    "T4": 8.1, "V100": 15.7, "RTX2080Ti": 13.4, "RTX3090": 35.6, "RTX4080": 48.7, "RTX4090": 82.6,
    "RTX5090": 104.8, "RTXA4500": 23.7, "RTXA5000": 27.8, "RTXA6000": 38.7, "RTX6000Ada": 91.1,
    "A10": 31.2, "A10G": 31.2, "A30": 10.3, "A40": 37.4, "A100": 19.5, "L40S": 91.6, "L40": 90.5,
    "L4": 30.3, "H100-PCIe": 51.2, "H100-NVL": 60, "H100": 66.9, "H200": 66.9, "GH200": 66.9,
    "H20": 44, "B200": 75, "GB10": 31,
}  # fmt: skip
"""TFLOP/s of products without tensor cores, from data sheets."""
_FP32 = 0.85
_NVLINK_GIGA = {"V100": 150, "A30": 100, "A100": 300, "H100-PCIe": 300, "H100-NVL": 300,
                "H100": 450, "H200": 450, "H20": 450, "GH200": 450, "B200": 900}  # fmt: skip
_MEMORY = 0.9
_LINK = 0.8
_PCI_GIGA = ((8, 15.75), (9, 31.5), (99, 63.0))
"""GB/s of 16 lanes in one direction, up to the card's capability: generations 3, 4 and 5."""
_PCI_COPY = 0.8
_PCI_RING = 0.55
"""Share of it for rings over the host: each byte passes its memory."""
_NET_GIGA = 45.0
"""GB/s of each card between machines: InfiniBand NDR of 400 Gbit/s."""
_FLASH = {7: (0.35, 0.30), 8: (0.66, 0.56), 9: (0.34, 0.30), 10: (0.15, 0.13), 12: (0.72, 0.68)}
"""FlashAttention-2 forward and backward by major capability, as shares of the data sheet's
products: it does not use Hopper's and Blackwell's own instructions."""


def rates(card: Card) -> dict[str, float]:
    """FLOP/s and bytes/s of one card, by the names of `csrc/state.h`."""
    flops = card.flops_per_s or _UNKNOWN[0]
    memory = card.memory_bytes_per_s or _UNKNOWN[1]
    forward, backward = _FLASH[card.capability[0]]
    pci = _GIGA * next(rate for major, rate in _PCI_GIGA if card.capability[0] < major)
    nvlink = _of(card, _NVLINK_GIGA, 0.0) * _GIGA
    return {
        "half_rate": flops * _of(card, _PRODUCTS, _OTHER_PRODUCTS),
        "fp32_rate": _of(card, _FP32_TERA, 19.5) * _TERA * _FP32,
        "attention_rate": flops * forward,
        "attention_backward_rate": flops * backward,
        "memory_rate": memory * _MEMORY,
        "link_rate": nvlink * _LINK or pci * _PCI_RING,
        "host_rate": memory if card.unified else pci * _PCI_COPY,
        "net_rate": _NET_GIGA * _GIGA,
    }


def _of(card: Card, table: Mapping[str, float], other: float) -> float:
    """The entry with the longest name that the card's name begins with."""
    named = [name for name in table if card.name.startswith(name)]
    return table[max(named, key=len)] if named else other
