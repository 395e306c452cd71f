"""How libraries below torch word that memory ran out: bare RuntimeErrors, known by their text."""

from __future__ import annotations

import re

DEVICE_MEMORY = re.compile(
    r"CUDA (?:driver )?error: out of memory|CUDA out of memory|cudaErrorMemoryAllocation"
    r"|Triton Error \[CUDA\]: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|(?:Cuda|CUDA) failure (?:\d+ )?'out of memory'"
    # Torch's own report of an out-of-memory asks NVML who holds what, and containers and MIG may
    # not let it (CUDACachingAllocator.cpp).
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED.*CUDACachingAllocator"
)
PINNING = re.compile(r"pack_to_cpu|pin_memory *[(=]|(?:^|in )pin_memory$", re.MULTILINE)
"""The name or the line of the frame in which page-locking host memory failed: CUDA has one text
for that and its own memory. A copy with `non_blocking=pin_memory` goes to the device."""
HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
    r"|[Cc]annot allocate memory|unable to mmap \d+ bytes"
)
