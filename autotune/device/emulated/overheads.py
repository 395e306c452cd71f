"""Memory of a card beside tensors, and its multiprocessors' limits.

Totals are from torch's out-of-memory messages with drivers of 2025 and later ("total capacity
of"). They are the most frequent value among public reports of a card. Contexts are medians from
such messages of one-GPU jobs: "this process has" less "allocated" and "reserved but unallocated".
There are about ten messages a card, so a context is good to some 50 MiB. B200 and GB10 have one
message. Cards not listed have the median of the others. H100 and H200 were measured:
`results/real.md`; messages say 690 and 600. Some sources:

- A100: HiDream-ai/VAREdit #6, Kwai-Keye/Keye #11, awslabs/keys_values #92
- RTX 4090: pytorch/torchchat #1341; RTX 5090: Wan-Video/Wan2.1 #465
- T4: Zheng-Chong/CatVTON #133; totals of GB10 and B200: leptonai/gpud #1170 (122,549 MiB)
  and pytorch/ao #4002 (178.35 GiB)
- L4: ArcInstitute/evo2 #190; L40: QwenLM/Qwen3-VL #2097

NCCL: NVIDIA/nccl #964 (544 MB for 2 ranks of A100, 688 for 3 and 4); sgl-project/sglang #30908
(576 MiB for 8 of GB200, the same for each further communicator); and one rank of H100 and H200,
564 and 560 MiB (`results/real.md`). The rest lies between these. Without NVLink, ranks of RTX 3090
and L40S hold 20 to 130 MiB more than a job of one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.device.cards import Card

_MIB = 1 << 20


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor. Source: CUDA programming guide, "Compute Capabilities"."""

    shared_per_block: int
    shared_per_sm: int
    threads: int


_LIMITS = {
    (7, 0): Multiprocessor(96 << 10, 96 << 10, 2048),
    (7, 5): Multiprocessor(64 << 10, 64 << 10, 1024),
    (8, 0): Multiprocessor(163 << 10, 164 << 10, 2048),
    (8, 6): Multiprocessor(99 << 10, 100 << 10, 1536),
    (8, 9): Multiprocessor(99 << 10, 100 << 10, 1536),
    (9, 0): Multiprocessor(227 << 10, 228 << 10, 2048),
    (10, 0): Multiprocessor(227 << 10, 228 << 10, 2048),
    (12, 0): Multiprocessor(99 << 10, 100 << 10, 1536),
    (12, 1): Multiprocessor(99 << 10, 100 << 10, 1536),
}

# MiB: CUDA's total, and the context of one process.
_MEASURED = {
    "T4": (14910, 142),
    "V100-16GB": (16144, 389),
    "V100-32GB": (32494, 389),
    "A10": (22588, 235),
    "A10G": (22587, 235),
    "L4": (22563, 250),
    "L40": (45457, 510),
    "L40S": (45457, 510),
    "RTX3090": (24126, 310),
    "RTX4090": (24081, 472),
    "RTX5090": (32109, 600),
    "A100-40GB": (40438, 510),
    "A100-80GB": (81157, 510),
    "H100": (81090, 767),
    "H100-PCIe": (81007, 600),
    "H200": (143156, 767),
    "B200": (182642, 710),
    "GB10": (122570, 330),
}
_OTHERS = (0.99, 500)
"""Share of NVML's total, and MiB of context, for other cards."""
_NVLINK = ("V100", "A30", "A100", "H100", "H20", "GH200", "H200", "B200")
_NCCL_MIB = ((1, 560, 60), (2, 545, 60), (4, 690, 110), (256, 620, 130))
"""Up to so many ranks: MiB with NVLink, and without."""


def limits(card: Card) -> Multiprocessor:
    return _LIMITS[card.capability]


def reserved_bytes(card: Card) -> int:
    """The driver's part of the memory that NVML shows, which no process gets."""
    known = _MEASURED.get(card.name)
    total = known[0] * _MIB if known else int(card.memory_bytes * _OTHERS[0]) // _MIB * _MIB
    return card.memory_bytes - total


def context_bytes(card: Card) -> int:
    """The context of one process that trains on the card."""
    return _MEASURED.get(card.name, _OTHERS)[1] * _MIB


def nccl_bytes(card: Card, ranks: int) -> int:
    """Bytes of one communicator on each of so many ranks of one machine."""
    linked = card.name.startswith(_NVLINK)
    return next(mib[0 if linked else 1] for most, *mib in _NCCL_MIB if ranks <= most) * _MIB
