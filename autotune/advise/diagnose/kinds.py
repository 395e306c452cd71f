"""The kinds of errors."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    DEVICE = "device memory"
    HOST = "host memory"
    SHARED = "shared memory"
    MEMORY = "some memory"
    """Some memory ran out, but it is unknown which."""
    KILLED = "killed"
    """Ended by SIGKILL, from the kernel for memory, or from others."""
    BUS = "bus error"
    """SIGBUS, mostly for a full /dev/shm."""
    BATCH = "batch sizes"
    DISK = "disk"
    FILES = "open files"
    LIBRARY = "library start"
    """cuBLAS or cuDNN could not start, often for lack of memory."""
    TIMEOUT = "collective timeout"
    ASSERT = "device fault"
    SHAPE = "shapes"
    KERNEL = "kernel resources"
    """On-chip memory of one kernel, whatever the memory of the device."""
    ENDED = "ended"
    """A process or a launcher ended, mostly after another one failed."""
    SCHEDULED = "ended by the scheduler"
    WARNING = "warning"
    LISTING = "listing"
    """No error: a listing of nvidia-smi, top and the like."""
    OTHER = "other error"

    @property
    def is_oom(self) -> bool:
        """Whether memory ran out, or may have for KILLED and BUS."""
        return self.ran_out or self in (Kind.KILLED, Kind.BUS)

    @property
    def ran_out(self) -> bool:
        return self in (Kind.DEVICE, Kind.HOST, Kind.SHARED, Kind.MEMORY)
