"""torch's `fully_shard` (FSDP2): stage 3 frees parameters after forward, stage 2 keeps them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from autotune.wire.ranks import Start
from probes.engines import DTYPES
from probes.engines.ddp import DdpEngine
from probes.faults import UnsupportedError
from probes.models import FamilyModels
from probes.world import World


class FsdpEngine(DdpEngine):
    """Sharded weights, gradients and optimizer state; fp32 weights, bf16 products if requested."""

    def __init__(self, start: Start, world: World) -> None:
        if start.dtype == "fp16":
            raise UnsupportedError("fsdp: fp16 needs a sharded loss scaler; use bf16")
        super().__init__(start, world)

    def _made_on(self, device: torch.device) -> torch.device:
        return torch.device("meta") if self._family.on_meta else device

    def _spread(self, start: Start, world: World) -> nn.Module:
        _shard(self._module, self._family, start, world)
        return self._module

    def _autocasts_to(self, start: Start) -> torch.dtype | None:
        return None  # FSDP's own policy casts

    def save(self, write: Callable[[Any], None], *, full: bool) -> None:
        options = StateDictOptions(
            full_state_dict=full, cpu_offload=full, ignore_frozen_params=True
        )
        state = get_state_dict(self._module, self._optimizers, options=options)
        if self._rank == 0 or not full:
            write(tree_map_only(DTensor, DTensor.to_local, state))

    def _sync(self, last: bool) -> AbstractContextManager[None]:
        assert isinstance(self._module, FSDPModule)
        self._module.set_requires_gradient_sync(last)
        return nullcontext()


def _shard(module: nn.Module, family: FamilyModels, start: Start, world: World) -> None:
    """Turn `module` from the meta device into shards, one block at a time. No rank ever holds it
    whole."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if start.dtype == "bf16" else None,
        reduce_dtype=DTYPES.get(start.model.reduce_dtype, torch.float32),
    )
    # The default is the accelerator of torch's build, which may be missing.
    shard = partial(
        fully_shard,
        mesh=init_device_mesh(world.device.type, (world.size,)),
        reshard_after_forward=start.model.zero_stage == 3,
        mp_policy=policy,
    )
    units = list(family.units(module))  # sharding renames their classes
    rest = set(module.modules()).difference(*(unit.modules() for unit in units))
    for unit in units:
        if family.on_meta:
            unit.to_empty(device=world.device)
            family.draw(module, unit)
        shard(unit)
    if family.on_meta:
        parts = [part for part in module.modules() if part in rest]
        for part in parts:
            part.to_empty(device=world.device, recurse=False)
        for part in reversed(parts):
            family.draw(module, part, within=False)
        family.tie(module)
    shard(module)
