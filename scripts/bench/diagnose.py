"""The speed of `python -m autotune diagnose`: MB/s of processor time, for kinds of log.

    .venv/bin/python scripts/bench/diagnose.py [--megabytes 500]

A log of each kind is made in memory and repeated. The promise is 100 MB/s on `progress`, the kind
of most large training logs; other kinds cost more. The exit code is always 0, since times depend
on the machine.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable

from shared import run

from autotune.advise.diagnose import LogReader
from autotune.advise.diagnose.context import Context

ERROR = (
    "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.23 GiB. GPU {0}"
    " has a total capacity of 19.58 GiB of which 1.06 GiB is free.\n"
)


def progress(i: int) -> str:
    """Dictionaries of transformers and progress bars."""
    return (
        f"{{'loss': {random.random():.4f}, 'grad_norm': {random.random():.6f}, 'epoch': {i}}}\n"
        f"  {i % 100}%|###       | {i}/100000 [01:02<3:04:05,  1.23it/s]\r"
    )


def coloured(i: int) -> str:
    """The same in colours."""
    return f"\x1b[32m{progress(i)}\x1b[0m"


def memory(i: int) -> str:
    """Lines full of words of memory and errors."""
    return f"step {i} error: {random.random():.3f} memory allocated 12.{i % 10} GiB of 24 GiB\n"


def talk(i: int) -> str:
    """Lines with words of errors, none of which is an error."""
    return f"worker {i} code 0: no RuntimeError: yet, exit when out of memory or Killed\n"


KINDS: tuple[Callable[[int], str], ...] = (progress, coloured, memory, talk)


class Repeated(io.RawIOBase):
    """A stream that repeats a text, and ends with an error."""

    def __init__(self, text: bytes, times: int) -> None:
        self._parts = [text] * times + ["".join(ERROR.format(r) for r in range(8)).encode()]

    def read1(self, size: int = -1) -> bytes:
        """The next piece."""
        return self._parts.pop(0) if self._parts else b""

    def read(self, size: int = -1) -> bytes:
        return self.read1(size)


def main(*, megabytes: int = 500) -> None:
    random.seed(0)
    print(f"{'log':10} {'MB/s':>6}  events")
    for kind in KINDS:
        text = "".join(map(kind, range(20_000))).encode()[: 2**20]
        reader = LogReader("log", Context())
        began = time.process_time()
        reader.read(Repeated(text, megabytes))  # type: ignore[arg-type]
        found = reader.finish()
        spent = time.process_time() - began
        print(f"{kind.__name__:10} {reader.scanner.bytes_read / spent / 1e6:6.0f}  {len(found)}")


if __name__ == "__main__":
    run(main)
