"""A script whose two ranks have micro-batches of their own: `unlike_script.py 2,4`.

Memory grows with the samples, and a step's time hardly does. One process forks the ranks, which is
faster than a launcher.
"""

from __future__ import annotations

import sys
import tempfile
import time

import light  # type: ignore[import-not-found]  # noqa: F401
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import autotune

WIDTH = 2**20


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :64] * self.weight.sum()).sigmoid().mean()


def run(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mine, factor = autotune.share(sys.argv[1])
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(mine, WIDTH)
    while True:
        loss = model(batch)
        (loss * factor).backward()
        time.sleep(0.2)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            run, (f"file://{folder}/store",), 2, start_method="fork"
        )
