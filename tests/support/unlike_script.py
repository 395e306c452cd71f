"""A script whose ranks have micro-batches of their own: `unlike_script.py 2,4`.

Memory grows with the samples, and a step's time hardly does.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autotune

WIDTH = 2**18


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight.sum()).sigmoid().mean()


dist.init_process_group("gloo")
mine, factor = autotune.share(sys.argv[1])
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss = model(torch.ones(mine, WIDTH))
    (loss * factor).backward()
    time.sleep(0.2)
    optimizer.step()
    optimizer.zero_grad()
