"""Peaks on this rank: allocator, process, device.

`CpuMeter`: the process is the device, and its peak is VmHWM, reset through /proc/self/clear_refs.

`CudaMeter`: the peak is the allocator's reserved peak plus memory outside it: the context, NCCL's
buffers, other libraries' workspaces. Memory outside is read after the engine's first steps. It is
the used device memory, minus that before the context and minus the allocator's. A later change
above `FOREIGN_SHARE` of the capacity belongs to other programs.

Contracts:

- Peaks start anew for every probe: the heap goes back first (`malloc_trim`), then the peaks are
  reset. Peaks cover warm-up, so a probe never stops before the end of its warm-up.
- On the CPU `RLIMIT_DATA` is not the capacity, but `VmData` plus capacity minus `VmRSS`, at the
  time of setting. So reserved address space does not count, and file-backed pages do. The limit is
  lifted before a fault is reported.
"""

from __future__ import annotations

import ctypes
import gc
import math
import resource
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml
import torch

from autotune.wire.reports import Peaks
from probes.faults import UnsupportedError

_PINNED_TRIAL_BYTES = 2**23
_SEGMENT_BYTES = 20 * 2**20
"""The smallest segment of torch's allocator for more than 1 MiB (kLargeBuffer)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KERNELS_BYTES = _NCCL_BYTES = 2**30
"""Allowances until the first warm-up ends: for late kernels, and for NCCL's further buffers, if
there are several ranks. The latter is at least the size of its first buffers. More belongs to
other programs."""
FOREIGN_SHARE = 0.01
"""A change of memory above this share of the capacity belongs to other programs."""
CUDA_GUARD = 0.97
"""Share of the capacity that the CUDA allocator may take before it raises."""


class Meter(ABC):
    """Memory of this rank between `reset` and `peaks`. The defaults suit a process that shares its
    memory with no other."""

    @abstractmethod
    def limit(self, capacity_bytes: int) -> None:
        """Let allocations beyond the capacity fail, as on such a device.

        Raises:
            MemoryError: this process already holds more.
        """

    @abstractmethod
    def reset(self) -> None:
        """Give cached memory back and start the peaks anew."""

    def anew(self) -> None:
        """Start the peaks anew, and keep what is cached."""
        self.reset()

    @abstractmethod
    def peaks(self) -> Peaks: ...

    @abstractmethod
    def held_bytes(self) -> int:
        """Present device memory, minus that at the call of `limit`."""

    def lift(self) -> None:
        """Lift the limit, so a rank that ran out of memory can still report it."""
        return

    def built(self) -> None:
        """The engine is built."""
        return

    def warmed(self) -> None:
        """The warm-up is over: libraries made the allocations of their first use."""
        return

    def sample(self) -> None:
        """Look at the device now; called between steps, outside the timed interval."""
        return

    def foreign_bytes(self) -> int:
        """Change of other programs' device memory since `warmed`, or its growth before."""
        return 0

    def taken_bytes(self, requested_bytes: int) -> int:
        """The device memory that others took, after an allocation of that size failed. 0 if this
        rank's own limit was the cause."""
        return 0

    def retries(self) -> int:
        """Allocator retries since the process began."""
        return 0


class CpuMeter(Meter):
    """Peaks of the process."""

    _base_own_bytes = 0

    def limit(self, capacity_bytes: int) -> None:
        # OpenMP cannot start its threads under a tight limit, and ends the process then.
        torch.ones(2**20).add_(1)
        self._base_own_bytes = own_bytes()
        room = capacity_bytes - status_bytes("VmRSS")
        if room < 0:
            raise MemoryError(
                f"the process holds {-room} bytes more than the capacity of {capacity_bytes}"
                " before it builds anything"
            )
        # RLIMIT_DATA counts private writable memory, touched or not, and no file-backed pages.
        # VmHWM counts the resident part of both. Their present difference is taken as constant.
        soft = status_bytes("VmData") + room
        resource.setrlimit(
            resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1])
        )

    def lift(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    def reset(self) -> None:
        trim_heap()
        self.anew()

    def anew(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            raise UnsupportedError(
                f"this kernel keeps no peak that can be reset: {error}"
            ) from error

    def peaks(self) -> Peaks:
        return Peaks.same(status_bytes("VmHWM"))  # kept by the kernel

    def held_bytes(self) -> int:
        trim_heap()
        return max(0, own_bytes() - self._base_own_bytes)


class CudaMeter(Meter):
    """Peaks of this process on one CUDA device. Make it before anything touches CUDA."""

    def __init__(self, uuid: str, ranks: int) -> None:
        pynvml.nvmlInit()
        self._ranks = ranks
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._before_bytes = self._in_use_bytes()
        self._outside_bytes = self._most_own_bytes = 0
        self._seen_bytes: list[int] = []
        self._slack_bytes = self._limit_bytes = 0
        self._is_new, self._is_warm = True, False
        self._pinned_is_resident = True

    def limit(self, capacity_bytes: int) -> None:
        total = torch.cuda.get_device_properties().total_memory
        share = min(1.0, CUDA_GUARD * capacity_bytes / total)
        self._limit_bytes = int(share * total)
        self._slack_bytes = int(FOREIGN_SHARE * capacity_bytes)
        torch.cuda.set_per_process_memory_fraction(share)
        # With some drivers, pinned pages count as resident memory of the process. Look after the
        # first pinned page has made the context, and OpenMP has its threads.
        torch.ones(2**20).add_(1)
        torch.zeros(1, dtype=torch.uint8, pin_memory=True)
        before = status_bytes("VmRSS")
        pinned = torch.zeros(_PINNED_TRIAL_BYTES, dtype=torch.uint8, pin_memory=True)
        self._pinned_is_resident = status_bytes("VmRSS") - before > _PINNED_TRIAL_BYTES // 2
        del pinned
        self._outside_bytes = max(0, self._outside_now())  # the context from pinning
        # Beside the group of all ranks, a library may make another one of the same size.
        nccl = max(_NCCL_BYTES, self._outside_bytes) if self._ranks > 1 else 0
        self._most_own_bytes = self._outside_bytes + _KERNELS_BYTES + nccl

    def built(self) -> None:
        torch.cuda.synchronize()
        self._outside_bytes = max(0, self._outside_now())

    def warmed(self) -> None:
        if self._is_new:  # NCCL and others allocate in their first use
            self._outside_bytes = max(self._outside_bytes, self._outside_now())
        self._is_new, self._is_warm = False, True
        self._seen_bytes.clear()

    def foreign_bytes(self) -> int:
        if not self._is_warm:
            return 0
        before = self._outside_bytes - self._most_own_bytes  # growth while it was built
        return max(0, before, *(abs(seen - self._outside_bytes) for seen in self._seen_bytes))

    def taken_bytes(self, requested_bytes: int) -> int:
        if torch.cuda.memory_reserved() + requested_bytes + _SEGMENT_BYTES > self._limit_bytes:
            return 0
        own = self._most_own_bytes if self._is_new else self._outside_bytes
        return max(0, self._outside_now() - own)

    def reset(self) -> None:
        trim_heap()
        torch.cuda.synchronize()
        # The next step makes them again: `engines.FirstStep` says why.
        if (forget := getattr(torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
            forget()
        torch.cuda.empty_cache()
        # Frees pinned memory of other shapes; torch has no public name for it.
        if (forget := getattr(torch._C, "_host_emptyCache", None)) is not None:
            forget()
        self.anew()
        self._seen_bytes.clear()
        self._is_warm = False

    def anew(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_host_memory_stats()
        with suppress(OSError):  # missing in some sandboxes: host peaks then count from the start
            Path("/proc/self/clear_refs").write_text("5")

    def sample(self) -> None:
        self._seen_bytes.append(self._outside_now())

    def peaks(self) -> Peaks:
        self.sample()
        stats = torch.cuda.memory_stats()
        reserved = torch.cuda.max_memory_reserved()
        # A larger change belongs to other programs: the probe runs again.
        slack = self._slack_bytes if self._is_warm else math.inf
        own = [b for b in self._seen_bytes if abs(b - self._outside_bytes) <= slack]
        return Peaks(
            device_bytes=reserved + max([self._outside_bytes, *own]),
            reserved_bytes=reserved,
            allocated_bytes=torch.cuda.max_memory_allocated(),
            active_bytes=stats.get("active_bytes.all.peak", 0),
            host_bytes=_host_peak_bytes() + self._pinned_peak_bytes(),
            alloc_retries=0,
        )

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    def retries(self) -> int:
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def _outside_now(self) -> int:
        """Device memory since this rank began, minus its allocator's."""
        held = int(torch.cuda.memory_reserved())
        return self._in_use_bytes() - self._before_bytes - held

    def _pinned_peak_bytes(self) -> int:
        """Pinned memory that the process's resident peak does not include."""
        if self._pinned_is_resident:
            return 0
        return int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))

    def _in_use_bytes(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def _host_peak_bytes() -> int:
    try:
        return status_bytes("VmHWM")
    except KeyError:  # some kernels do not tell
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def trim_heap() -> None:
    """Return freed heap, so a small candidate after a large one shows its own peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def status_bytes(field: str) -> int:
    """A size of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def own_bytes() -> int:
    """Resident memory without pages of files. A forked rank maps those of torch's libraries only
    on use, 80 MiB in a CUDA build."""
    return status_bytes("VmRSS") - status_bytes("RssFile")


@contextmanager
def given_back() -> Iterator[None]:
    """A context in which freed whole tensors leave the process at once, after sharding.

    glibc would keep them. Its threshold for a fresh mapping starts at 128 KiB and grows to 32 MiB
    with freed sizes (mallopt(3), M_MMAP_THRESHOLD). A fixed value ends this growth, so the final
    value is set at the end.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # some C libraries lack it
    if mallopt is None:
        yield
        return
    mallopt(_M_MMAP_THRESHOLD, 64 * 2**10)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
