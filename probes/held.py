"""Memory of this user's processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_SHM = "/dev/shm"
_BLOCK_BYTES = 512
"""The unit of st_blocks on any file system (stat(2))."""


def memory_bytes(pid: int | str) -> int:
    """Memory of a process, with its share of pages that it shares, but without shared memory. 0 if
    it is gone.

    Source: the kernel's Documentation/filesystems/proc.rst, smaps_rollup.
    """
    process = Path("/proc") / str(pid)
    for name, held, shared in (("smaps_rollup", "Pss:", "Pss_Shmem:"),
                               ("status", "VmRSS:", "RssShmem:")):  # fmt: skip
        with suppress(OSError):  # some kernels lack the first
            rows = (line.split() for line in (process / name).read_text().splitlines())
            sizes = {row[0]: int(row[1]) for row in rows if row[-1] == "kB"}
            if held in sizes:
                return 1024 * (sizes[held] - sizes.get(shared, 0))
    return 0


def shared_bytes(pids: Sequence[int | str]) -> int:
    """Bytes of processes in /dev/shm, each file once: open ones, and mapped ones."""
    found: dict[int, int] = {}
    for pid in pids:
        found |= dict(_mapped(pid))
    for pid in pids:
        found |= dict(_open(pid))  # open files tell their real size
    return sum(found.values())


def _open(pid: int | str) -> Iterator[tuple[int, int]]:
    """Inode and bytes of each of its open files there, also of deleted ones."""
    with suppress(OSError):
        device = os.stat(_SHM).st_dev  # noqa: PTH116
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                status = each.stat()
                if status.st_dev == device:
                    yield status.st_ino, status.st_blocks * _BLOCK_BYTES


def _mapped(pid: int | str) -> Iterator[tuple[int, int]]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            addresses, _, _, _, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith(_SHM):
                first, last = (int(each, 16) for each in addresses.split("-"))
                yield int(inode), last - first
