"""Data loaders as a user would write them, for `python -m autotune loader`."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)

WIDTH = 16


class Samples(Dataset[dict[str, Tensor]]):
    """Tokens, each sample after so many seconds."""

    def __init__(self, sample_s: float = 0.0, count: int = 1_000_000) -> None:
        self.sample_s = sample_s
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.sample_s:
            time.sleep(self.sample_s)
        ids = torch.full((WIDTH,), index)
        return {"input_ids": ids, "mask": torch.ones(2 * WIDTH)}


class InWorker(Samples):
    """A fault of a worker in its first sample."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.act = act

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if get_worker_info() is not None:
            match self.act:
                case "error":
                    raise KeyError("y")
                case "hang":  # as it leaves, which waits for this thread
                    threading.Thread(target=time.sleep, args=(3600,)).start()
                    self.act = ""
                case "":
                    pass
                case name:
                    os.kill(os.getpid(), signal.Signals[name])
        return super().__getitem__(index)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.zeros(3)


class OwnLoader(DataLoader[Any]):
    def __init__(self, dataset: Dataset[Any], more: int) -> None:
        super().__init__(dataset, batch_size=more)


@dataclasses.dataclass
class Pair:
    ids: Tensor
    image: Tensor


def slow(num_workers: int, prefetch_factor: int | None, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(
        Samples(0.002), batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor
    )


def free(**setting: Any) -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=4, **setting)


def plain() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=4, shuffle=True)


def short() -> DataLoader[Any]:
    return DataLoader(Samples(count=12), batch_size=4)


def drawn() -> DataLoader[Any]:
    data = Samples()
    return DataLoader(data, 5, sampler=RandomSampler(data), drop_last=True, collate_fn=list)


def stream() -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=7)


def unbatched() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=None)


def own_batches() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_sampler=[[0, 1], [2, 3, 4]])


def own_class() -> DataLoader[Any]:
    return OwnLoader(Samples(), 4)


def generator() -> Iterator[UserDict[str, Tensor]]:
    for _ in range(50):
        yield UserDict({"ids": torch.zeros((2, 8), dtype=torch.int32)})


def sized(batch_size: int, seq_len: int) -> DataLoader[Any]:
    data: Any = [torch.zeros(seq_len, dtype=torch.long)] * 64
    return DataLoader(data, batch_size)


def unpicklable() -> DataLoader[Any]:
    data = Samples()
    data.key = lambda: 1  # type: ignore[attr-defined]
    return DataLoader(data, batch_size=4, multiprocessing_context=None)


def spawned(num_workers: int) -> DataLoader[Any]:
    found = unpicklable()
    context = "spawn" if num_workers else None
    return DataLoader(found.dataset, 4, num_workers=num_workers, multiprocessing_context=context)


def persistent(num_workers: int) -> DataLoader[Any]:
    return DataLoader(Samples(), 4, num_workers=num_workers, persistent_workers=True)


def error() -> DataLoader[Any]:
    raise RuntimeError("my own mistake")


def error_in_worker() -> DataLoader[Any]:
    return DataLoader(InWorker("error"), 4)


def bus_error() -> DataLoader[Any]:
    return DataLoader(InWorker("SIGBUS"), 4)


def killed() -> DataLoader[Any]:
    return DataLoader(InWorker("SIGKILL"), 4)


def hangs_on_exit() -> DataLoader[Any]:
    return DataLoader(InWorker("hang"), 4)


def empty() -> list[Tensor]:
    return []


def no_iterable() -> int:
    return 3


def never() -> Iterator[Tensor]:
    time.sleep(3600)
    yield torch.zeros(1)


number = 3
