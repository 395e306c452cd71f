"""Print a process's GPU memory beside torch's allocator, step by step, and the GPU's rates.

    .venv/bin/python scripts/bench/context.py [--emulate H100]

Run it alone on the GPU: others' memory is taken as constant. `--emulate` shows the memory of an
emulated card at the same steps; its rates mean nothing.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # autotune need not be installed

import torch
from shared import run
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from autotune.device.emulated.emulation import emulate as emulated

MIB = 1 << 20
SIZE = 8192
BACKENDS = {
    "flash attention": SDPBackend.FLASH_ATTENTION,
    "efficient attention": SDPBackend.EFFICIENT_ATTENTION,
    "math attention": SDPBackend.MATH,
    "cuDNN attention": SDPBackend.CUDNN_ATTENTION,
}


class Held:
    """NVML's memory of all processes, minus that before CUDA began and minus torch's own."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._before = self._used()
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        self.card = {
            "name": pynvml.nvmlDeviceGetName(self._handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "total_mib": memory.total / MIB,
            "driver_reserved_mib": memory.reserved / MIB,
            "used_before_mib": self._before / MIB,
        }

    def _used(self) -> int:
        return int(
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2).used
        )

    def mib(self) -> float:
        torch.cuda.synchronize()
        return (self._used() - self._before - torch.cuda.memory_reserved()) / MIB


def attend(backend: SDPBackend) -> None:
    shape = (4, 16, 1024, 64)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    with sdpa_kernel(backend):
        torch.autograd.backward(scaled_dot_product_attention(q, k, v, is_causal=True).sum())


def train() -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def convolve() -> None:
    conv = nn.Conv2d(16, 32, 3).cuda()
    conv(torch.randn(4, 16, 64, 64, device="cuda")).sum().backward()


def one_rank() -> None:
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))


def product() -> None:
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    (a @ a).sum().item()


STEPS: dict[str, Callable[[], Any]] = {
    "initialised": torch.cuda.init,
    "an allocation": lambda: torch.empty(1, device="cuda"),
    "a kernel": lambda: torch.ones(1, device="cuda").add_(1),
    "a matrix product": product,
    **{name: partial(attend, each) for name, each in BACKENDS.items()},
    "AdamW's steps": train,
    "a convolution": convolve,
    "NCCL with one rank": one_rank,
}


def timed(work: Callable[[], Any], times: int = 10) -> float:
    """Seconds of one `work`."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def rates() -> dict[str, float]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = timed(lambda: a @ b)
    buffer, other = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copied_s = timed(lambda: other.copy_(buffer))
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    to_s = timed(lambda: buffer.copy_(host, non_blocking=True), 3)
    from_s = timed(lambda: host.copy_(buffer, non_blocking=True), 3)
    small = torch.zeros(1, device="cuda")
    launch_s = timed(lambda: small.add_(1), 1000)
    return {
        "bf16_tflops": 2 * SIZE**3 / product_s / 1e12,
        "copy_gb_per_s": 2 * (1 << 30) / copied_s / 1e9,
        "to_device_gb_per_s": (1 << 30) / to_s / 1e9,
        "from_device_gb_per_s": (1 << 30) / from_s / 1e9,
        "launch_us": launch_s * 1e6,
    }


def main(emulate: str | None = None) -> int:
    if emulate is not None:
        with closing(emulated(emulate)) as emulation:
            environment = os.environ | emulation.environment
            return subprocess.call([sys.executable, __file__], env=environment)
    held = Held()
    found: dict[str, Any] = {"torch": torch.__version__, **held.card, "beside_torch_mib": {}}
    for name, step in STEPS.items():
        began = time.monotonic()
        try:
            step()
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]:.200}", file=sys.stderr)
            continue
        gc.collect()
        found["beside_torch_mib"][name] = round(held.mib(), 1)
        print(f"{name}: {held.mib():.1f} MiB, {time.monotonic() - began:.2f} s", file=sys.stderr)
    found |= {"rates": {name: round(value, 2) for name, value in rates().items()}}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    run(main)
