"""Emulated GPUs: torch's CUDA build, and all that trains with it, without a GPU.

Stand-ins take the place of the CUDA libraries that torch links (`build.py`). All that runs on the
host is real: torch's allocator with its fragmentation and its out-of-memory errors, streams,
process groups, DeepSpeed's accelerator, inductor and Triton. Memory of a card is counted, and
backed by nothing but what small copies touch. Kernels do nothing: computed values are zeros.
Their time is modelled (`csrc/clock.h`): events tell what work takes by its shapes and by what the
card achieves (`rates.py`). cuDNN is not emulated, so torch takes its own kernels of attention.

Contracts:

- All processes of one emulation share one file (`layout.py`, `csrc/state.h`), so each sees what
  the others hold, through cudaMemGetInfo and NVML alike. What a dead process held is free.
- What has no stand-in refuses, and says its name once; it never pretends.
- `wire.emulated.emulating()` is the one place that says so to code that compares values.
"""
