"""Compiled code on emulated cards: inductor and Triton are real, their kernels do nothing."""

from __future__ import annotations

import pytest

from tests.emulated.conftest import Emulate, begin, end

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.campaign]


def test_compiled_code_trains_and_takes_less_memory(emulate: Emulate) -> None:
    program = """
import os, sys, torch
net = torch.nn.Sequential(
    torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512),
    torch.nn.LayerNorm(512),
).cuda().bfloat16()
step = torch.compile(net) if sys.argv[1] == "on" else net
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    out = step(torch.randn(1 << 14, 512, device="cuda", dtype=torch.bfloat16))
    out.float().square().mean().backward()
print(torch.cuda.max_memory_allocated(), flush=True)
os._exit(0)  # a backward thread may abort while the interpreter ends: pytorch issue 190489
"""
    cards = emulate("1xA100-40GB")
    compiled, eager = (int(end(begin(cards, program, how))) for how in ("on", "off"))
    assert 100 << 20 < compiled < eager
