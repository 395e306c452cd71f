"""The ranks of one group: their rendezvous, and values that they agree on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.wire.emulated import ALONE, emulating
from autotune.wire.ranks import Start, Store


class World:
    """This rank's place among `size` ranks."""

    def __init__(
        self, rank: int, size: int, device: torch.device, here: int | None = None
    ) -> None:
        """`here` is the number of ranks on this host; None for all."""
        self.rank = rank
        self.size = size
        self.here = here or size
        self.device = device
        self._clock = CardClock() if device.type == "cuda" and emulating() else time.perf_counter

    def now(self) -> float:
        """Seconds of the clock for steps: the host's, or an emulated device's own."""
        return self._clock()

    def slowest(self, *seconds: float) -> list[float]:
        """The largest of each value over ranks. All ranks wait, and get the same numbers."""
        if self.size == 1:
            return list(seconds)
        agreed = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        return [float(value) for value in agreed.tolist()]

    def total(self, size: int) -> int:
        """The sum of `size` over ranks."""
        mine = torch.tensor([size], dtype=torch.int64, device=self.device)
        return int(self.gathered(mine).sum())

    def gathered(self, mine: Tensor) -> Tensor:
        """`mine` of all ranks, one after the other; all are of its shape."""
        if self.size == 1:
            return mine
        every = mine.new_empty(self.size * mine.numel())
        dist.all_gather_into_tensor(every, mine.flatten())
        return every

    def synchronize(self) -> None:
        """Wait for the device's queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class CardClock:
    """The time of an emulated device, by events on the current stream."""

    def __init__(self) -> None:
        self._now = 0.0
        self._last: torch.cuda.Event | None = None

    def __call__(self) -> float:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        if self._last is not None:  # not since the first one: milliseconds are in 32 bits
            self._now += self._last.elapsed_time(event) / 1e3
        self._last = event
        return self._now


def join(
    rank: int, start: Start, opened: Callable[[Store], None], *, needs_group: bool = True
) -> World:
    """Meet the other ranks. Rank 0 opens the store on a free port and reports it by `opened`.

    A single rank joins no process group unless it `needs_group`. No port is chosen in advance, so
    no other program can take it.
    """
    if start.device_kind == "cuda":
        device = torch.device("cuda", start.local_rank)
        torch.cuda.set_device(device)
        if emulating():
            torch.backends.cudnn.enabled = False  # convolutions use torch's own kernels
    else:
        device = torch.device("cpu")
    if start.world_size == 1 and not needs_group:
        return World(0, 1, device)
    if start.alone:
        return _stand_for_all(start.world_size, device)
    timeout = timedelta(minutes=30)  # the study's deadlines are shorter: it ends a hanging group
    host, port, listening = start.store_host, start.store_port, None
    if rank == 0:  # by default the store would listen on every interface
        server = socket.create_server((start.address, 0))
        host, port = server.getsockname()[:2]
        listening = server.detach()  # the store closes it
    store = dist.TCPStore(  # type: ignore[attr-defined]  # a C++ class the stubs leave out
        host,
        port,
        start.world_size,
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listening,
    )
    if rank == 0:
        opened(Store(host, port))
    dist.init_process_group(
        "nccl" if start.device_kind == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=start.world_size,
        timeout=timeout,
        # torch makes later groups of a bound group by ncclCommSplit, which needs a peer
        # (DeepSpeed's issue 8248).
        device_id=device if start.device_kind == "cuda" and start.world_size > 1 else None,
    )
    return World(rank, start.world_size, device, start.local_ranks)


def _stand_for_all(ranks: int, device: torch.device) -> World:
    """Join a process group of `ranks` on emulated devices, without the others."""
    os.environ[ALONE] = "1"
    os.environ["TORCH_NCCL_RANKS_PER_ROOT"] = str(ranks)  # else it waits for other roots
    store = dist.HashStore()  # type: ignore[attr-defined]  # see `join`
    dist.init_process_group("nccl", store=store, rank=0, world_size=ranks)
    made = dist.new_group

    def new_group(*args: Any, **named: Any) -> Any:
        """A group that connects at once, like those of a group that is bound to its device."""
        group = made(*args, **named)
        if isinstance(group, dist.ProcessGroup):
            group._get_backend(device).eager_connect_single_device(device)
        return group

    dist.new_group = new_group
    return World(0, ranks, device, 1)
