"""torch's `fully_shard` (FSDP2): stage 3 frees parameters after forward, stage 2 keeps them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from autotune.wire.ranks import Start
from autotune.wire.recipe import CLIP_NORM
from probes.engines import DTYPES, count, made, stored_as
from probes.engines.ddp import optimizers
from probes.faults import UnsupportedError
from probes.models import Batch, FamilyModels, family
from probes.world import World


class FsdpEngine:
    """Sharded weights, gradients and optimizer state; fp32 weights, bf16 products if asked for."""

    def __init__(self, start: Start, world: World) -> None:
        if start.dtype == "fp16":
            raise UnsupportedError("fsdp: fp16 needs a sharded loss scaler; use bf16")
        self._family = family(start.model.name)
        on_meta = self._family.on_meta
        with torch.device("meta" if on_meta else world.device), stored_as(start.model.param_dtype):
            module = made(start.model, self._family)
        self.parameters = count(module)
        _shard(module, self._family, start, world)
        self._model = module
        self._optimizers = list(optimizers(module, start.model.optimizer, self._family))
        self._scale = 1.0

    def prepare(self, micro_batch: int, micro_steps: int) -> None:
        self._scale = 1 / micro_steps
        self._drop_gradients()

    def forward_backward(self, batch: Batch, *, last: bool) -> Tensor:
        assert isinstance(self._model, FSDPModule)
        self._model.set_requires_gradient_sync(last)
        loss = self._family.loss(self._model, batch)
        (loss * self._scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_NORM)
        for optimizer in self._optimizers:
            optimizer.step()
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)


def _shard(module: nn.Module, family: FamilyModels, start: Start, world: World) -> None:
    """`module` from the meta device to its shards, one block at a time: no rank ever holds it
    whole."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if start.dtype == "bf16" else None,
        reduce_dtype=DTYPES.get(start.model.reduce_dtype, torch.float32),
    )
    # The default is of the accelerator that torch was built for, which may not be there.
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
