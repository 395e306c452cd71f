"""The sizes in an error message, in bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.units import gib

SIZE = r"\d[\d,]{0,30}+(?:\.\d{0,30}+)?\s*+(?:[Bb]ytes|[KMGTPkB]i?B?)\b"
"""Bounded, like the beginning of all searched patterns, so a run of digits takes linear time."""
_OWN_SHARE = 0.9
"""If the only named process holds this share of the used memory, it is the failed one."""
OTHERS_SHARE = 0.03
"""Others count if they hold more than this share of a device: the rest is driver and rounding."""

_UNITS = {"b": 1, "bytes": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
MOST_BYTES = 2**50
"""With some drivers torch prints 17179869184 GiB: a negative number, read as unsigned."""
_PATTERNS = {
    "asked": (r"alloc\w* [^()]{0,40}?\((\d{1,18}+ ?(?:bytes|B))\)",
              rf"memory \(({SIZE})\) could not",
              rf"(?:[Tt]r(?:ied|ying)|[Aa]ttempting) to (?:allocate|reserve|map) ?({SIZE})",
              r"(?:alloc(?:ate|ating|ation)?|reserve)(?: [\w().]{1,12}){0,3}? [(]?"
              rf"({SIZE}|\d+B(?=\)))",
              rf"(?:Requested *:|Invalid buffer size:|desired GPU memory utilization \([\d.]+,"
              rf"|anon-rss:|VmRSS:?|hbm usage >=) ?({SIZE})",
              rf"({SIZE}) KV cache is needed",
              r"\balloc (?:DEVICE memory:|memory of|size :) (\d{1,18})\b",
              rf"more (?:\w+ )?memory \(({SIZE})\)", r"\bsize::? ?(\d{1,18})\b",
              r"(?:alloc\w*|buffer) of size (\d{1,18})\b", r"buffer: (\d{6,18})\b"),
    "total": (rf"total capac(?:i?ty) of ({SIZE})", rf"({SIZE}) ?total ?capacity",
              rf"Device limit *: ({SIZE})", rf"max allowed: ({SIZE})",
              r"total mem size : (\d{1,18})\b"),
    "free": (rf"of which ({SIZE}) (?:is|are) free", rf"({SIZE}) free(?=[;,.)])",
             rf"Free \(according to CUDA\): ({SIZE})", rf"available memory is only ({SIZE})",
             rf"available (?:KV cache memory )?\(({SIZE})\)"),
    "allocated": (rf"({SIZE}) is allocated by Py[Tt]orch", rf"({SIZE}) already allocated",
                  rf"Currently allocated *: ({SIZE})", rf"MPS allocated: ({SIZE})",
                  rf"({SIZE}) memory has been allocated"),
    "unallocated": (rf"({SIZE}) is reserved by Py[Tt]orch but unallocated",),
    "reserved": (rf"({SIZE}) reserved in total by Py[Tt]orch",),
    "cached": (rf"({SIZE}) cached[;)]",),
    "process": (rf"this process has ({SIZE}) memory in use",),
    "allowed": (rf"({SIZE}) allowed;", rf"memory fraction\) *: ({SIZE})"),
    "outside": (rf"other allocations: ({SIZE})",),
}  # fmt: skip
_PAIRS = (
    ("asked", "total", "KiB", re.compile(r"memory limit \((\d{1,15}) > (\d{1,15})\)")),
    ("asked", "total", "", re.compile(rf"(?:Used|was running was) ({SIZE}) (?:of|/) ({SIZE})")),
    ("asked", "total", "", re.compile(rf"Requires ({SIZE}), has ({SIZE}) available")),
    ("free", "total", "", re.compile(r"Free memory/Total memory: (\d{1,15})/(\d{1,15})")),
    ("free", "total", "", re.compile(r"\(free: (\d{1,15}), total: (\d{1,15})\)")),
    ("free", "total", "GiB", re.compile(r"\(([\d.]{1,9})/([\d.]{1,9}) GiB\) on startup")),
)
"""Pairs of sizes in one unit, from slurm, XLA, ray and vLLM."""
_COMPILED = {name: [re.compile(each) for each in rows] for name, rows in _PATTERNS.items()}
_PROCESS = re.compile(rf"Process (\d+) has ({SIZE}) memory in use")
_DEVICE = re.compile(
    r"(?:\b(?:GPU|NPU|XPU|MLU|MUSA|DCU)[ :#=]{0,2}|\b(?:cuda|hip|npu|xpu):"
    r"|on (?:device (?:ordinal )?|ND )|device_id: ?|\[(?=\d+\] \S+ NCCL WARN))(\d{1,4})\b"
    r"(?![.\d]* ?[KMG]i?B|-\d)"
)


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The sizes in one message; None for missing ones."""

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    """By torch, for tensors."""
    unallocated: int | None = None
    """Reserved by torch, and not allocated."""
    process: int | None = None
    """Held by the process that failed, the driver's context included."""
    others: tuple[tuple[int, int], ...] = ()
    """Process and bytes, for every other process in the message."""
    allowed: int | None = None
    """A limit set in the program, below the capacity."""
    device: int | None = None
    is_limit: bool = False
    """Whether the total is a limit on main memory, as with MPS, not a device's size."""

    @property
    def count(self) -> int:
        """Number of sizes in the message."""
        return sum(size is not None for size in vars(self).values())

    @property
    def short(self) -> int | None:
        """Missing bytes."""
        if self.asked is None or self.free is None:
            return None
        return self.asked - self.free if self.asked > self.free else None

    @property
    def outside(self) -> int | None:
        """Used, but not reserved by torch in this process: others, or the driver's context."""
        known = (self.total, self.free, self.allocated, self.unallocated)
        total, free, *reserved = (size if size is not None else -1 for size in known)
        return None if None in known else max(0, total - free - sum(reserved))

    @property
    def others_bytes(self) -> int | None:
        """Held by other processes: used bytes minus those of this process."""
        if self.others:
            return sum(size for _, size in self.others)
        if None in (self.total, self.free) or not self.process:
            return None
        assert self.total is not None
        assert self.free is not None
        return max(0, self.total - self.free - self.process)


NOTHING = Amounts()


def parse(text: str) -> int | None:
    """Bytes of "1.25 GiB"; None for impossible sizes. Allocators write GB for 2^30, too."""
    match = re.fullmatch(r"\s*(\d[\d,]*\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", text)
    if match is None:
        return None
    unit = match[2].lower()
    number = re.sub(r",(?=\d{1,2}$)", ".", match[1])  # a decimal comma
    size = float(number.replace(",", "")) * _UNITS.get(unit, _UNITS.get(unit[:1], 1))
    return round(size) if size < MOST_BYTES else None


def read(text: str) -> Amounts:
    found: dict[str, int | None] = {}
    for name, patterns in _COMPILED.items():
        match = next(filter(None, (each.search(text) for each in patterns)), None)
        found[name] = parse(match[1]) if match else None
    for first, second, unit, pair in _PAIRS:
        if both := pair.search(text):
            found |= {first: parse(both[1] + unit), second: parse(both[2] + unit)}
    reserved, outside, cached = (found.pop(name) for name in ("reserved", "outside", "cached"))
    allocated, total, free = found["allocated"], found["total"], found["free"]
    if cached is not None and allocated is not None:
        # Torch up to 1.3 prints cached bytes without allocated ones, some builds with them.
        beside = total is None or allocated + cached + (free or 0) <= 1.01 * total
        reserved = allocated + cached if beside else cached
    if found["unallocated"] is None and reserved is not None and allocated is not None:
        found["unallocated"] = max(0, reserved - allocated)
    if outside is not None and allocated is not None:  # MPS
        process = outside + allocated
        found["process"] = process
        if free is None and total is not None:
            found["free"] = max(0, total - process)
    sizes = [(int(pid), parse(said)) for pid, said in _PROCESS.findall(text)]
    held = [(pid, size) for pid, size in sizes if size is not None]
    if len(held) == 1 and found["process"] is None and allocated is None:
        if total and free is not None and held[0][1] >= _OWN_SHARE * (total - free):
            found["process"] = held.pop()[1]
    elif held and found["process"] is None and allocated is not None:
        # In a container, torch does not find its own process in NVML's list.
        ours = allocated + (found["unallocated"] or 0)
        own = min(held, key=lambda each: abs(each[1] - ours))
        held.remove(own)
        found["process"] = own[1]
    device = _DEVICE.search(text)
    return Amounts(
        **found, others=tuple(held), device=int(device[1]) if device else None,
        is_limit="max allowed" in text,
    )  # fmt: skip


def balance(a: Amounts) -> tuple[str, ...]:
    """The message's numbers, added up."""
    lines = []
    if a.total is not None and a.free is not None:
        used = a.total - a.free
        whole = "allowed" if a.is_limit else "in all"
        lines.append(f"{gib(a.total)} {whole} - {gib(a.free)} free = {gib(used)} in use")
        parts = []
        if a.process:
            parts.append(f"{gib(a.process)} this process")
        if a.others_bytes and a.others_bytes > OTHERS_SHARE * a.total:
            parts.append(f"{gib(a.others_bytes)} others")
        if parts:
            lines.append(f"{gib(used)} in use: {' + '.join(parts)}")
        elif a.outside is None:
            lines.append(f"the message does not say who holds the {gib(used)}")
    if a.allocated is not None:
        inner = [f"{gib(a.allocated)} allocated by torch"]
        if a.unallocated is not None:
            inner.append(f"{gib(a.unallocated)} reserved but unallocated")
        if a.process and a.process > a.allocated + (a.unallocated or 0):
            rest = a.process - a.allocated - (a.unallocated or 0)
            who = "other allocations" if a.is_limit else "context, NCCL, libraries"
            inner.append(f"{gib(rest)} outside torch ({who})")
        elif not a.process and a.outside is not None:
            inner.append(f"{gib(a.outside)} outside torch")
        whole = f" = {gib(a.process)}" if a.process else ""
        lines.append(" + ".join(inner) + whole)
    if a.short:
        assert a.asked is not None
        assert a.free is not None
        lines.append(f"{gib(a.asked)} asked - {gib(a.free)} free = {gib(a.short)} missing")
    elif a.asked is not None and a.free is None:
        lines.append(f"{gib(a.asked)} asked")
    return tuple(lines)
