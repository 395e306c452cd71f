"""torch.compile of a model's blocks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def compile_blocks(blocks: Iterable[nn.Module], *, dynamic: bool = False) -> None:
    """Have each of `blocks` compile its `forward` for every shape that it meets.

    Shapes are compiled as they are, as in training, which has one; or as symbols, if they are
    `dynamic`. What engines hang on a block, outside its `forward`, stays as it is.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=dynamic)
