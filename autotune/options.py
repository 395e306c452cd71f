"""What the user asked for: the text of each flag, parsed and checked.

Every parser raises `UsageError` with one line that names the flag, what is wrong with its value
and a value that would work. Nothing here looks at a device; what depends on one stays `None`
until `space.resolve` fills it in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Checkpointing = Literal["none", "full"]
Dtype = Literal["auto", "fp32", "bf16", "fp16"]
OptimizerName = Literal["adamw", "muon"]
EngineName = Literal["auto", "ddp", "deepspeed", "fsdp"]
Offload = Literal["none", "optimizer", "all"]
Objective = Literal["flops", "tokens_per_s", "samples_per_s"]
SamplerName = Literal["frontier", "tpe", "gp", "random", "grid"]

MODELS = ("gpt",)
ZERO_STAGES = (0, 1, 2, 3)
MIN_CAPACITY_BYTES = 64 * 2**20
DEFAULT_BUDGET_S = 1800.0
LONGEST_S = 365 * 24 * 3600.0

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class UsageError(Exception):
    """The input is wrong. The message is one line; the command line ends with exit code 2."""


@dataclass(frozen=True)
class GlobalBatch:
    """Samples or tokens that one optimizer step must see, over all ranks."""

    amount: int
    unit: Literal["samples", "tokens"]

    def __str__(self) -> str:
        return f"{self.amount}tok" if self.unit == "tokens" else str(self.amount)


@dataclass(frozen=True)
class Options:
    """One study as the user asked for it. `None` means: choose what fits the device."""

    budget_s: float = DEFAULT_BUDGET_S
    ceiling: float = 0.8
    host_ceiling: float = 0.9
    capacity_bytes: int | None = None
    device: str = "auto"
    allow_busy: bool = False
    world_size: int | None = None
    model: str = "gpt"
    width: int | None = None
    vocab_size: int | None = None
    depth: tuple[int, ...] | None = None
    seq_len: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    engine: EngineName = "auto"
    zero: tuple[int, ...] | None = None
    offload: tuple[str, ...] | None = None
    checkpointing: tuple[str, ...] | None = None
    dtype: Dtype = "auto"
    optimizer: OptimizerName | None = None
    global_batch: GlobalBatch | None = None
    objective: Objective = "flops"
    sampler: SamplerName = "frontier"
    seed: int = 0
    out: Path | None = None
    finals: int = 3
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UsageError(f"--model {self.model}: unknown model; known: {', '.join(MODELS)}")
        self._check_stages()
        for flag, value in [("--width", self.width), ("--vocab-size", self.vocab_size)]:
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        if self.width is not None and self.width % 64:
            raise UsageError(
                f"--width {self.width}: must be a multiple of 64, the size of an attention head,"
                f" e.g. {max(64, round(self.width / 64) * 64)}"
            )
        if self.world_size is not None and self.world_size < 1:
            raise UsageError(f"--world-size {self.world_size}: must be at least 1")
        if self.finals < 1:
            raise UsageError(
                f"--finals {self.finals}: must be at least 1, since what is written is confirmed"
            )
        if self.trials is not None and self.trials < 1:
            raise UsageError(f"--trials {self.trials}: must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed {self.seed}: must be 0 to {2**32 - 1}, e.g. 0")

    def _check_stages(self) -> None:
        """That engine, stages and offloads go together, as far as that can be told from them."""
        stages = ENGINE_STAGES[self.engine]
        for stage in self.zero or ():
            if stage not in ZERO_STAGES:
                raise UsageError(f"--zero {stage}: no such stage; known: 0, 1, 2, 3")
            if stage not in stages:
                raise UsageError(
                    f"--zero {stage}: --engine {self.engine} has no such stage;"
                    f" use --zero {','.join(map(str, stages))}"
                )
        moved = [offload for offload in self.offload or () if offload != "none"]
        if not moved:
            return
        if self.engine in ("ddp", "fsdp"):
            raise UsageError(
                f"--offload {moved[0]}: --engine {self.engine} does not offload here;"
                " use --engine deepspeed, or --offload none"
            )
        if self.zero is not None and not any(self.zero):
            raise UsageError(
                f"--offload {moved[0]}: stage 0 keeps everything on the device;"
                " add a stage, e.g. --zero 2"
            )
        if "all" in moved and self.zero is not None and 3 not in self.zero:
            raise UsageError("--offload all: only stage 3 can offload parameters; add --zero 3")


ENGINE_STAGES: dict[str, tuple[int, ...]] = {
    "auto": (0, 1, 2, 3),
    "ddp": (0,),
    "deepspeed": (0, 1, 2, 3),
    "fsdp": (2, 3),
}
"""ZeRO stages that each engine has. FSDP's are its two ways: parameters kept or given back."""


def parse_duration_s(text: str, flag: str) -> float:
    """Seconds in "90s", "30m", "1.5h" or a bare number of seconds.

    Raises:
        UsageError: not a duration, not above 0, or above `LONGEST_S`.
    """
    number, unit = _split(text)
    if number is None or (unit and unit not in _SECONDS):
        raise UsageError(f"{flag} {text}: not a duration; write it as 90s, 30m or 1.5h")
    seconds = number * _SECONDS[unit or "s"]
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{flag} {text}: must be more than 0 and at most a year, e.g. 30m")
    return seconds


def parse_share(text: str, flag: str) -> float:
    """Fraction in (0, 1] of "80%" or "0.8".

    Raises:
        UsageError: not a share, or outside (0 %, 100 %].
    """
    number, unit = _split(text)
    if number is None or unit not in ("", "%"):
        raise UsageError(f"{flag} {text}: not a share; write it as 80% or 0.8")
    share = number / 100 if unit else number
    if not 0 < share <= 1:
        raise UsageError(f"{flag} {text}: must be above 0% and at most 100%, e.g. 80%")
    return share


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in "24GiB", "512MiB", "80GB" or a bare number of bytes.

    Raises:
        UsageError: not a size, or below `MIN_CAPACITY_BYTES`.
    """
    number, unit = _split(text)
    if number is None or (unit and unit not in _BYTES):
        raise UsageError(f"{flag} {text}: not a size; write it as 24GiB or 512MiB")
    size = number * _BYTES[unit or "b"]
    if not MIN_CAPACITY_BYTES <= size < math.inf:
        raise UsageError(f"{flag} {text}: must be at least {MIN_CAPACITY_BYTES // 2**20}MiB")
    return int(size)


def parse_ints(text: str, flag: str, *, least: int = 1) -> tuple[int, ...]:
    """Ascending integers in "1,2,4" or in the closed range "1:64" (or "8:64:8", with a step).

    Raises:
        UsageError: not integers, an empty or reversed range, or a value below `least`.
    """
    values: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(-?\d{1,9})(?::(-?\d{1,9})(?::(-?\d{1,9}))?)?\s*", part)
        if match is None:
            raise UsageError(f"{flag} {text}: not integers; write them as 1,2,4 or 1:64")
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        step = int(match[3]) if match[3] is not None else 1
        if step < 1:
            raise UsageError(f"{flag} {text}: the step must be at least 1, e.g. {first}:{last}:1")
        if last < first:
            raise UsageError(f"{flag} {text}: the range is reversed; write {last}:{first}")
        if first < least:
            raise UsageError(f"{flag} {text}: values must be at least {least}, e.g. {least}")
        if (last - first) // step >= 100_000:
            raise UsageError(f"{flag} {text}: more than 100000 values; add a step, e.g. 1:4096:64")
        values.update(range(first, last + 1, step))
    return tuple(sorted(values))


def parse_names(text: str, flag: str, known: object) -> tuple[str, ...]:
    """The comma-separated names of `text`, each a member of the Literal type `known`.

    Raises:
        UsageError: a name that is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in get_args(known):
            raise UsageError(f"{flag} {name}: unknown; known: {', '.join(get_args(known))}")
    return names


def parse_global_batch(text: str, flag: str) -> GlobalBatch:
    """A global batch in tokens ("65536tok") or samples ("256").

    Raises:
        UsageError: neither, or below 1.
    """
    match = re.fullmatch(r"\s*(\d{1,15})\s*(tok|tokens|samples)?\s*", text)
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{flag} {text}: write tokens as 65536tok or samples as 256")
    unit: Literal["samples", "tokens"] = (
        "tokens" if (match[2] or "").startswith("tok") else "samples"
    )
    return GlobalBatch(int(match[1]), unit)


def gib(size: int) -> str:
    """`size` bytes for people: "1.25 GiB", "310 MiB", "12 KiB", "40 bytes"."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    if size >= 2**20:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / 2**10:.0f} KiB" if size >= 2**10 else f"{size} bytes"


def _split(text: str) -> tuple[float | None, str]:
    """Number and lower-case unit of `text`; the number is None where there is none."""
    match = re.fullmatch(r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*([a-zA-Z%]*)\s*", text)
    return (float(match[1]), match[2].lower()) if match else (None, "")
