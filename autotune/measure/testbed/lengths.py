"""Lengths of samples, read from a file: a CSV, a .npy or a JSONL."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from autotune.errors import UsageError
from autotune.space.axes import Batching
from autotune.space.mix import RUN_STEPS, LengthMix
from autotune.space.options import Options, SpaceOptions
from autotune.wire.ranks import padded_to
from autotune.wire.settings import rows

MOST_BYTES = 2**30
MOST_LINE_BYTES = 2**26
MOST_LENGTH = 10**9 - 1
AT_ONCE = 2**20


def read_mix(options: Options) -> LengthMix | None:
    """The mix of the file that `options` name; None if they name none. Raises UsageError if the
    file cannot be read, or has other content."""
    asked, sizes = options.space, options.model.image_size or ()
    if asked.length_mix is None:
        flags = [axis.flag for name, axis in rows(Batching).items() if name in asked.axes]
        if flags and sizes:
            raise UsageError(
                f"{flags[0]}: not with --image-size, whose batches are padded to their longest"
                " sample; leave it out"
            )
        for flag in flags + ["--run-steps"] * (asked.run_steps is not None and len(sizes) < 2):
            more = "name several sizes in --image-size" if sizes else "add --length-mix FILE"
            raise UsageError(f"{flag}: all samples have one length; {more}, or leave it out")
        return None
    path, flag = Path(asked.length_mix), f"--length-mix {asked.length_mix}"
    if path.suffix not in _READERS:
        raise UsageError(f"{flag}: name a .csv, a .npy or a .jsonl")
    try:
        about = path.stat()
        if not path.is_file():  # a pipe could block for ever
            raise UsageError(f"{flag}: no such file; name a .csv, a .npy or a .jsonl")
        found = _histogram(path.absolute(), about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise UsageError(f"{flag}: {error.strerror or error}") from error
    except (ValueError, EOFError, RecursionError, csv.Error) as error:
        raise UsageError(f"{flag}: {_first_line(error)}") from error
    if not found:
        raise UsageError(f"{flag}: has no lengths; write a line such as 512,1")
    return LengthMix.of(
        asked.length_mix,
        found,
        by_tokens=asked.tokens_per_batch is not None,
        run_steps=asked.run_steps or RUN_STEPS,
    )


def padded_longest(asked: SpaceOptions, mix: LengthMix) -> int:
    """Tokens of the longest sample after padding to each of the multiples."""
    return padded_to(mix.longest, math.lcm(*asked.axes.get("pad_to_multiple", (1,))))


@lru_cache(maxsize=1)
def _histogram(path: Path, size_bytes: int, changed_ns: int) -> Counter[int]:
    """Numbers of samples by length. Cached, since it is read again later."""
    if size_bytes > MOST_BYTES:
        raise ValueError(
            f"has {size_bytes / 2**30:.1f} GiB, more than the limit of 1 GiB; write a CSV of"
            " length,count"
        )
    with path.open("rb") as file:
        return _READERS[path.suffix](file)


def at_longest(options: Options) -> Options:
    """`options` with all samples as long as the longest. Raises as `read_mix` does."""
    mix = read_mix(options)
    if sizes := options.model.image_size:
        options = options.but(image_size=(max(sizes, key=math.prod),), run_steps=None)
    if mix is None:
        return options
    seq_len = options.space.axes.get("seq_len") or (padded_longest(options.space, mix),)
    return options.but(
        **dict.fromkeys(rows(Batching)), length_mix=None, run_steps=None, seq_len=seq_len
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is no text"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _length(value: Any, where: str) -> int:
    """Raises ValueError if `value` is no length."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or value % 1:
        raise ValueError(f"{where}: {str(value)!a:.40} is not a length; write a whole number")
    if not 1 <= value <= MOST_LENGTH:
        raise ValueError(f"{where}: a length of {value:.0f}; lengths are 1 to {MOST_LENGTH}")
    return int(value)


def _lines(file: BinaryIO) -> Iterator[str]:
    for number in count(1):
        line = file.readline(MOST_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"line {number}: has over {MOST_LINE_BYTES >> 20} MiB")
        yield line.decode("utf-8-sig")


def _csv(file: BinaryIO) -> Counter[int]:
    found: Counter[int] = Counter()
    for number, row in enumerate(csv.reader(_lines(file)), 1):
        where = f"line {number}"
        if not row or (number == 1 and [cell.strip() for cell in row] == ["length", "count"]):
            continue
        try:
            length, times = map(int, row)
        except ValueError:
            said = ",".join(row)
            raise ValueError(f"{where}: {said!a:.40}; write length,count as 512,31") from None
        if not 0 <= times < 2**53:
            raise ValueError(f"{where}: a count of {times}; counts are 0 or more")
        found[_length(length, where)] += times
    return +found


def _jsonl(file: BinaryIO) -> Counter[int]:
    found: Counter[int] = Counter()
    for number, line in enumerate(_lines(file), 1):
        where = f"line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            raise ValueError(f"{where}: {line.strip()!a:.40} is no JSON") from None
        if isinstance(value, dict):
            tokens = value.get("input_ids")
            value = value.get("length", len(tokens) if isinstance(tokens, list) else None)
            if value is None:
                raise ValueError(f"{where}: has neither length nor a list of input_ids")
        found[_length(value, where)] += 1
    return found


def _npy(file: BinaryIO) -> Counter[int]:
    import numpy as np

    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}  # fmt: skip
    if version not in read:
        raise ValueError(f"is a .npy of version {version}; write it with numpy.save")
    shape, _, dtype = read[version](file)
    if len(shape) != 1 or dtype.kind not in "iuf":
        what = "pickled objects" if dtype.hasobject else f"{dtype} of {len(shape)} dimensions"
        raise ValueError(f"holds {what}; save a 1-D array of whole numbers")
    found: Counter[int] = Counter()
    for begin in range(0, shape[0], AT_ONCE):
        size = min(AT_ONCE, shape[0] - begin) * dtype.itemsize
        read_bytes = file.read(size)
        if len(read_bytes) < size:
            raise ValueError(f"is cut off: its header says {shape[0]} entries")
        part = np.frombuffer(read_bytes, dtype)
        for value, times in zip(*np.unique(part, return_counts=True), strict=True):
            found[_length(value.item(), f"from entry {begin}")] += int(times)
    return found


_READERS: dict[str, Callable[[BinaryIO], Counter[int]]] = {
    ".csv": _csv, ".jsonl": _jsonl, ".npy": _npy,
}  # fmt: skip
