"""torch.compile of a model's blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import nn
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler


class Compiler:
    """Counts compilations of torch.compile in this process, from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.times = 0
        """Number of compiled pieces of code, each for some shape. A backward pass counts with its
        forward pass."""
        self._began = 0.0
        handler = callback_handler
        handler.register_start_callback(self._start)
        handler.register_end_callback(self._end)

    def _start(self, why: CallbackArgs) -> None:
        self._began = time.perf_counter()
        self.times += why.callback_trigger is CallbackTrigger.DYNAMO

    def _end(self, why: CallbackArgs) -> None:
        self.seconds += time.perf_counter() - self._began


def compile_blocks(blocks: Iterable[nn.Module], *, dynamic: bool = False) -> None:
    """Have each of `blocks` compile its `forward` for every shape that it meets.

    `dynamic` shapes are symbols. Hooks of engines on a block, outside its `forward`, stay as they
    are.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=dynamic)
