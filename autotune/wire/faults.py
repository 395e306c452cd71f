"""Out-of-memory errors of libraries below torch: RuntimeErrors that only their text identifies."""

from __future__ import annotations

import re

DEVICE_MEMORY = re.compile(
    r"CUDA (?:driver )?error: out of memory|CUDA out of memory|cudaErrorMemoryAllocation"
    r"|Triton Error \[CUDA\]: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|(?:Cuda|CUDA) failure (?:\d+ )?'out of memory'"
    # Torch asks NVML about processes for its own report, which fails in containers and with MIG
    # (CUDACachingAllocator.cpp).
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED.*CUDACachingAllocator"
)
PINNING = re.compile(r"pack_to_cpu|pin_memory *[(=]|(?:^|in )pin_memory$", re.MULTILINE)
"""The name or the line of a frame that failed to page-lock host memory: CUDA has the same text for
its own memory. A copy with `non_blocking=pin_memory` goes to the device."""
HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
    r"|[Cc]annot allocate memory|unable to mmap \d+ bytes"
)
