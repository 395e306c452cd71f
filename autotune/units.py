"""Quantities as people write them: durations, shares, sizes, lists of integers and of words.

Every parser raises `UsageError` in one line: the flag, the error, a value that works.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from autotune.errors import UsageError

MIN_CAPACITY_BYTES = 64 * 2**20
LONGEST_S = 365 * 24 * 3600.0

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"b": 1} | {
    unit: size**power
    for power, letter in enumerate("kmgt", 1)
    for unit, size in ((f"{letter}b", 10**3), (f"{letter}ib", 2**10), (f"{letter}i", 2**10),
                       (letter, 2**10))
}  # fmt: skip
"""A bare letter is binary, as for Slurm, Docker and GNU's tools."""


def parse_duration_s(text: str, flag: str) -> float:
    """Seconds in "90s", "30m" or "1.5h". Raises UsageError: not a duration, not above 0, above
    `LONGEST_S`, or without a unit."""
    number, unit = _split(text)
    if number is None or (unit and unit not in _SECONDS):
        raise UsageError(f"{flag} {text}: not a duration; write it as 90s, 30m or 1.5h")
    seconds = number * _SECONDS[unit or "s"]
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{flag} {text}: must be more than 0 and at most a year, e.g. 30m")
    if not unit:
        number_text = text.strip()
        raise UsageError(
            f"{flag} {text}: seconds or minutes? Write {number_text}s or {number_text}m"
        )
    return seconds


def parse_share(text: str, flag: str) -> float:
    """Fraction in (0, 1] of "80%" or "0.8". Raises UsageError: not a share, or outside (0 %, 100
    %]."""
    number, unit = _split(text)
    if number is None or unit not in ("", "%"):
        raise UsageError(f"{flag} {text}: not a share; write it as 80% or 0.8")
    share = number / 100 if unit else number
    if not 0 < share <= 1:
        meant = f"{number:g}%" if not unit and 1 < share <= 100 else "e.g. 80%"
        raise UsageError(f"{flag} {text}: must be above 0% and at most 100%: write {meant}")
    return share


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in "24GiB", "512MiB", "80GB", "1T" (1 TiB) or a bare number of bytes. Raises
    UsageError: not a size, or below `MIN_CAPACITY_BYTES`."""
    number, unit = _split(text)
    if number is None or (unit and unit not in _BYTES):
        raise UsageError(f"{flag} {text}: not a size; write it as 512MiB, 24GiB or 1TiB")
    size = number * _BYTES[unit or "b"]
    if not MIN_CAPACITY_BYTES <= size < math.inf:
        bare = not unit and 0 < number < MIN_CAPACITY_BYTES
        meant = f"; a number alone counts bytes: write {number:g}GiB" if bare else ""
        least = f"must be at least {MIN_CAPACITY_BYTES // 2**20}MiB"
        raise UsageError(f"{flag} {text}: {least}{meant}")
    return int(size)


def parse_ints(text: str, flag: str, *, least: int = 1) -> tuple[int, ...]:
    """Ascending integers in "1,2,4" or in the closed range "1:64" (or "8:64:8", with a step).
    Raises UsageError: not integers, an empty or reversed range, or a value below `least`."""
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


def parse_int(text: str, flag: str) -> int:
    """A whole number. Raises `UsageError` for other texts."""
    if re.fullmatch(r"\s*[-+]?\d{1,4000}\s*", text) is None:
        raise UsageError(f"{flag} {text}: not a whole number; write it as 2")
    return int(text)


def parse_name(text: str, flag: str, known: Sequence[str]) -> str:
    """One of the `known` words. Raises `UsageError` for others."""
    if text not in known:
        raise UsageError(f"{flag} {text}: unknown; known: {', '.join(known)}")
    return text


def gib(size: int) -> str:
    """`size` bytes in words: "1.25 GiB", "310 MiB", "12 KiB", "40 bytes"."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    if size >= 2**20:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / 2**10:.0f} KiB" if size >= 2**10 else f"{size} bytes"


def _split(text: str) -> tuple[float | None, str]:
    """Number and lower-case unit of `text`; the number is None if there is none."""
    match = re.fullmatch(r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*([a-zA-Z%]*)\s*", text)
    return (float(match[1]), match[2].lower()) if match else (None, "")
