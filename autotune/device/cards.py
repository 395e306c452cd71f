"""GPUs by name, for plans without a GPU.

Memory is NVML's total, as in nvidia-smi. Sources: modal-labs/modal-client #2797 for H100, A100,
A10, L40S, L4 and T4; tables of nvidia-smi in public issues for the others. Rates are from NVIDIA's
data sheets: memory, and dense products in bf16, or in fp16 if the card has no bf16. Compute
capabilities: developer.nvidia.com/cuda-gpus and cuda-legacy-gpus.

Numbers of multiprocessors follow from the CUDA cores in NVIDIA's data sheets. Some cards answered
the same:

- T4: NVIDIA/DALI #1813; RTX 2080 Ti: 10gic/vanitygen-plusplus #15; A100: ekondis/mixbench #47
- RTX 4090: pc2/GPUInspector.jl #11; RTX 5090: aikitoria/open-gpu-kernel-modules #1
- B200: pytorch/ao #4002
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from autotune.errors import UsageError
from autotune.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Card:
    name: str
    memory_bytes: int
    flops_per_s: float | None = None
    """FLOP/s of dense products in 16 bits; None if only the memory is known."""
    memory_bytes_per_s: float | None = None
    sms: int = 108
    capability: tuple[int, int] = (8, 0)
    nvml_name: str = ""
    unified: bool = False
    """Whether it shares the host's memory."""

    @property
    def bf16(self) -> bool:
        """Whether bf16 products run in hardware: Ampere and later."""
        return self.capability >= (8, 0)


def _card(
    name: str, mib: int, tera_flops: float, gb_per_s: float, *, sms: int, capability: float,
    nvml: str = "", unified: bool = False,
) -> Card:  # fmt: skip
    major, minor = divmod(round(10 * capability), 10)
    return Card(
        name=name, memory_bytes=mib * 2**20, flops_per_s=tera_flops * 1e12,
        memory_bytes_per_s=gb_per_s * 1e9, sms=sms, capability=(major, minor),
        nvml_name=nvml or f"NVIDIA {name}", unified=unified,
    )  # fmt: skip


CARDS = (
    _card("T4", 15360, 65, 320, sms=40, capability=7.5, nvml="Tesla T4"),
    _card("V100-16GB", 16384, 125, 900, sms=80, capability=7.0, nvml="Tesla V100-SXM2-16GB"),
    _card("V100-32GB", 32768, 125, 900, sms=80, capability=7.0, nvml="Tesla V100-SXM2-32GB"),
    _card("RTX2080Ti", 11264, 54, 616, sms=68, capability=7.5, nvml="NVIDIA GeForce RTX 2080 Ti"),
    _card("RTX3090", 24576, 71, 936, sms=82, capability=8.6, nvml="NVIDIA GeForce RTX 3090"),
    _card("RTX4080", 16376, 97, 717, sms=76, capability=8.9, nvml="NVIDIA GeForce RTX 4080"),
    _card("RTX4090", 24564, 165, 1008, sms=128, capability=8.9, nvml="NVIDIA GeForce RTX 4090"),
    _card("RTX5090", 32607, 209, 1792, sms=170, capability=12.0, nvml="NVIDIA GeForce RTX 5090"),
    _card("RTXA4500", 20470, 95, 640, sms=56, capability=8.6, nvml="NVIDIA RTX A4500"),
    _card("RTXA5000", 24564, 111, 768, sms=64, capability=8.6, nvml="NVIDIA RTX A5000"),
    _card("RTXA6000", 49140, 155, 768, sms=84, capability=8.6, nvml="NVIDIA RTX A6000"),
    _card(
        "RTX6000Ada",
        49140,
        364,
        960,
        sms=142,
        capability=8.9,
        nvml="NVIDIA RTX 6000 Ada Generation",
    ),
    _card("A10", 23028, 125, 600, sms=72, capability=8.6),
    _card("A10G", 23028, 70, 600, sms=80, capability=8.6),
    _card("A30", 24576, 165, 933, sms=56, capability=8.0),
    _card("A40", 46068, 150, 696, sms=84, capability=8.6),
    _card("A100-40GB", 40960, 312, 1555, sms=108, capability=8.0, nvml="NVIDIA A100-SXM4-40GB"),
    _card("A100-80GB", 81920, 312, 2039, sms=108, capability=8.0, nvml="NVIDIA A100-SXM4-80GB"),
    _card("L4", 23034, 121, 300, sms=58, capability=8.9),
    _card("L40", 46068, 181, 864, sms=142, capability=8.9),
    _card("L40S", 46068, 362, 864, sms=142, capability=8.9),
    _card("H100", 81559, 989, 3352, sms=132, capability=9.0, nvml="NVIDIA H100 80GB HBM3"),
    _card("H100-PCIe", 81559, 756, 2039, sms=114, capability=9.0, nvml="NVIDIA H100 PCIe"),
    _card("H100-NVL", 95830, 835, 3938, sms=132, capability=9.0, nvml="NVIDIA H100 NVL"),
    _card("H20", 97871, 148, 4000, sms=78, capability=9.0),
    _card("GH200", 97871, 989, 4022, sms=132, capability=9.0, nvml="NVIDIA GH200 480GB"),
    _card("H200", 143771, 989, 4800, sms=132, capability=9.0),
    _card("B200", 183359, 2250, 7700, sms=148, capability=10.0),
    _card("GB10", 122570, 125, 273, sms=48, capability=12.1, unified=True),
)


@dataclass(frozen=True)
class Gpus:
    counts: tuple[int, ...]
    """Numbers of GPUs, ascending; several for a table of them."""
    card: Card


def parse_gpus(text: str, flag: str = "--gpus") -> Gpus:
    """GPUs in "8xH100", "4x80GiB", "1,2,4x32GiB" or "RTX4090". Raises UsageError if the text has
    another form, or names an unknown card."""
    if of_nodes := re.fullmatch(r"\s*(\d{1,5})\s*[xX*×]\s*(\d{1,5})\s*[xX*×]\s*(.+)", text):
        several = f"{int(of_nodes[1]) * int(of_nodes[2])}x{of_nodes[3]}"
        raise UsageError(f"{flag} {text}: write {several}; eight of more GPUs share a machine")
    match = re.fullmatch(r"\s*(?:([\d,\s]+?)\s*[xX*×]\s*)?(\w[\w. -]*?)\s*", text)
    if match is None:
        raise UsageError(f"{flag} {text}: write 4x80GiB, 8xH100 or 1,2,4x32GiB")
    numbers = [part.strip() for part in (match[1] or "1").split(",") if part.strip()]
    if not all(re.fullmatch(r"\d{1,9}", number) for number in numbers):
        raise UsageError(f"{flag} {text}: no numbers of GPUs; write 4x80GiB or 1,2,4x32GiB")
    counts = {int(number) for number in numbers}
    if not counts or min(counts) < 1 or max(counts) > MOST_GPUS:
        raise UsageError(f"{flag} {text}: from 1 to {MOST_GPUS} GPUs, e.g. 8x{match[2]}")
    return Gpus(tuple(sorted(counts)), _named(match[2], f"{flag} {text}"))


MOST_GPUS = 65536
NAMED_SIZE_OFF = 0.1
"""The largest difference, as a share, of the size in a card's name and NVML's total."""


def _named(text: str, asked: str) -> Card:
    if re.fullmatch(r"[\d.]+ *[A-Za-z]+", text):
        size = parse_bytes(text.replace(" ", ""), asked.partition(" ")[0])
        if size > 2**50:
            raise UsageError(f"{asked}: no GPU has {text}; write e.g. 80GiB")
        return Card(name=text, memory_bytes=size)
    wanted = plain_name(text)
    # Most cards have one size, which is also in NVML's names.
    names = {wanted, plain_name(re.sub(r"\b\d+ ?GB\b", "", text))}
    words = [(card, _words(card)) for card in CARDS]
    exact = [card for card, known in words if names & known]
    several = exact or [card for card, known in words if any(w.startswith(wanted) for w in known)]
    if len(several) == 1:
        said = re.search(r"\b(\d+) ?GB\b", text)
        has = several[0].memory_bytes / 2**30
        if said is not None and abs(int(said[1]) / has - 1) > NAMED_SIZE_OFF:
            raise UsageError(
                f"{asked}: {several[0].name} has {has:.0f} GiB; for a card with other memory"
                f" write only that, {said[1]}GiB"
            )
        return several[0]
    if several and wanted in ("a100", "v100"):
        raise UsageError(f"{asked}: which one: {' or '.join(each.name for each in several)}?")
    names_of = {plain_name(card.name): card.name for card in CARDS}
    turned = re.fullmatch(r"(.+)[xX*×](\d{1,4})", text)
    if turned is not None and (name := names_of.get(plain_name(turned[1]))) is not None:
        raise UsageError(f"{asked}: write {turned[2]}x{name}")
    near = get_close_matches(wanted, names_of, 1, 0.75)
    meant = f" did you mean {names_of[near[0]]}?" if near else ""
    known = ", ".join(names_of.values())
    raise UsageError(f"{asked}: unknown card;{meant} write its memory, e.g. 80GiB, or {known}")


def _words(card: Card) -> set[str]:
    """Plain names of a card: with and without its series, and that of a machine built on it."""
    name = plain_name(card.name)
    return {name, name.removeprefix("rtx")} | ({"dgxspark"} if name == "gb10" else set())


def plain_name(name: str) -> str:
    """A short form of a card's `name`: without maker, family, form and hyphens."""
    return re.sub(r"nvidia|geforce|tesla|sxm\d?|hbm\d\w?|gb$|gib$|[\s_-]", "", name.lower())
