"""The kinds of errors."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What an error is of."""

    DEVICE = "device memory"
    HOST = "host memory"
    SHARED = "shared memory"
    MEMORY = "some memory"
    """Ran out, and nothing says which."""
    KILLED = "killed"
    """By SIGKILL, which the kernel sends for memory, and others for their own reasons."""
    BUS = "bus error"
    """SIGBUS, mostly of a full /dev/shm."""
    BATCH = "batch sizes"
    DISK = "disk"
    FILES = "open files"
    LIBRARY = "library start"
    """cuBLAS or cuDNN could not start, often for want of memory."""
    TIMEOUT = "collective timeout"
    ASSERT = "device fault"
    SHAPE = "shapes"
    KERNEL = "kernel resources"
    """On-chip memory of one kernel; how much memory the device has does not matter."""
    ENDED = "ended"
    """A process, or a launcher: mostly after another one failed."""
    SCHEDULED = "ended by the scheduler"
    WARNING = "warning"
    LISTING = "listing"
    """Nothing failed: of nvidia-smi, top and the like, which show how a machine is used."""
    OTHER = "other error"

    @property
    def is_oom(self) -> bool:
        """Whether memory is, or for KILLED and BUS may be, what ran out."""
        return self.ran_out or self in (Kind.KILLED, Kind.BUS)

    @property
    def ran_out(self) -> bool:
        """Whether memory is what ran out."""
        return self in (Kind.DEVICE, Kind.HOST, Kind.SHARED, Kind.MEMORY)
