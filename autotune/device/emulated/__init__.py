"""Emulated GPUs: torch's CUDA build, and all that trains with it, without a GPU.

Stand-ins replace the CUDA libraries that torch links (`build.py`). The host's part is real:
torch's allocator with its fragmentation and its out-of-memory errors, streams, process groups,
DeepSpeed's accelerator, inductor and Triton. Memory of a card is counted; only small copies touch
real memory. Kernels do nothing: computed values are zeros. Their time is modelled
(`csrc/clock.h`). It follows from the work's shapes and from the rates of the card (`rates.py`).
cuDNN is not emulated, so torch uses its own kernels of attention.

Contracts:

- All processes of one emulation share one file (`layout.py`, `csrc/state.h`). So each sees the
  others' memory, by cudaMemGetInfo and by NVML. A dead process's memory is free.
- A function without a stand-in refuses, and prints its name once.
- Code that compares computed values asks `wire.emulated.emulating()`, and nothing else.
"""
