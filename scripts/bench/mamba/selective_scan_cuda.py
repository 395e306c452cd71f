"""Stands for mamba-ssm's compiled kernels, on GPUs where kernels do nothing.

It makes the allocations of `selective_scan_fwd` and `_bwd`, in their order. B and C vary by token.
Source: state-spaces/mamba 2.3.2, csrc/selective_scan/selective_scan.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK = 2048


def fwd(*given: Any) -> list[Tensor]:
    u, delta, a, _, _, _, z, *_ = given
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    batch, channels, length = u.shape
    states = a.new_empty(batch, channels, -(-length // _CHUNK), 2 * a.shape[1])
    return [out, states, *gated]


def bwd(*given: Any) -> list[Tensor | None]:
    u, delta, a, b, c, d, z, bias, _, _, out, dz, _, with_output = given
    gated = [] if z is None else [torch.empty_like(z) if dz is None else dz]
    if gated and with_output:
        gated.append(torch.empty_like(out))
    made = [torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)]
    of_b, of_c = (torch.zeros_like(of, dtype=torch.float32) for of in (b, c))
    rest = [None if of is None else torch.zeros_like(of) for of in (d, bias)]
    return [*made, of_b.to(b.dtype), of_c.to(c.dtype), *rest, *gated]
