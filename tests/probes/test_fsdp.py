"""Sharding by FSDP2, in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from probes.engines.fsdp import _shard
from probes.world import World


@pytest.mark.parametrize("built_for", ["cpu", "cuda"])
def test_shards_are_on_the_ranks_device(built_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch with CUDA names that as its accelerator on a machine without a GPU, too."""
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda *_: torch.device(built_for))
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    family: Any = SimpleNamespace(units=lambda of: [of[0]], on_meta=False)
    model = SimpleNamespace(zero_stage=3, reduce_dtype="auto")
    start: Any = SimpleNamespace(dtype="fp32", model=model)
    store = dist.HashStore()  # type: ignore[attr-defined]  # a C++ class the stubs leave out
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        _shard(module, family, start, World(0, 1, torch.device("cpu")))
        assert isinstance(module, FSDPModule)
        assert isinstance(module[0], FSDPModule)
        assert {p.device.type for p in module.parameters()} == {"cpu"}
    finally:
        dist.destroy_process_group()
