"""torch's own data parallelism: DistributedDataParallel, or the bare module on one rank.

fp32 is plain. bf16 and fp16 keep fp32 weights and run the model under autocast; fp16 has a loss
scaler. torch's documentation advises this for mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autotune.wire.ranks import Start
from autotune.wire.recipe import CLIP_NORM, LEARNING_RATE, MUON_LEARNING_RATE
from probes.engines import (
    FirstStep,
    count,
    evaluated,
    is_muon,
    made,
    stored_as,
    trained,
)
from probes.models import Batch, FamilyModels, family
from probes.world import World

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DdpEngine:
    """Replicated weights; gradients averaged between ranks during the last backward."""

    def __init__(self, start: Start, world: World) -> None:
        self._family = family(start.model.name)
        self._stored = start.model.stored_in(start.dtype)
        with self._made_on(world.device), stored_as(self._stored):
            self._module = made(start.model, self._family, start.dtype)
        self.parameters = count(self._module)
        self._model = self._spread(start, world)
        self._optimizers = list(optimizers(self._module, start.model.optimizer, self._family))
        self._first_step = FirstStep(self._optimizers)
        self._scale, self._rank = 1.0, world.rank
        self._device_type = world.device.type
        self._autocast_dtype = self._autocasts_to(start)
        self._scaler = torch.amp.GradScaler(world.device.type, enabled=start.dtype == "fp16")

    def _made_on(self, device: torch.device) -> torch.device:
        """The device on which the module is made."""
        return device

    def _spread(self, start: Start, world: World) -> nn.Module:
        """The module, wrapped for training by all ranks."""
        for each in (*self._module.parameters(), *self._module.buffers()):
            if each.device.type != world.device.type:  # torch.Tensor(n) made it on the host
                each.data = each.data.to(world.device)
        if start.world_size == 1:
            return self._module
        # The gradients live in the buckets: one copy, not two.
        return DistributedDataParallel(
            self._module, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def _autocasts_to(self, start: Start) -> torch.dtype | None:
        """The dtype of autocast; None if weights are in bf16 already."""
        return None if self._stored == start.dtype else _AUTOCAST.get(start.dtype)

    def prepare(self, micro_batch: int, micro_steps: int, weight: float = 1.0) -> None:
        self._scale = weight / micro_steps
        self._drop_gradients()
        self._first_step.come()

    def forward_backward(self, batch: Batch, *, last: bool) -> Tensor:
        with self._sync(last):
            with self._autocast():
                loss = self._family.loss(self._model, batch)
            self._scaler.scale(loss * self._scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def evaluate(self, batch: Batch) -> list[Tensor]:
        with self._autocast():
            return evaluated(self._module, lambda: self._family.loss(self._model, batch))

    def save(self, write: Callable[[Any], None], *, full: bool) -> None:
        if self._rank == 0:  # all ranks have all
            weights = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
            write([weights, [each.state_dict() for each in self._optimizers]])

    def update(self) -> None:
        for optimizer in self._optimizers:
            self._scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP_NORM)
        for optimizer in self._optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _sync(self, last: bool) -> AbstractContextManager[None]:
        if isinstance(self._model, DistributedDataParallel) and not last:
            return self._model.no_sync()
        return nullcontext()

    def _autocast(self) -> AbstractContextManager[object]:
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._autocast_dtype)


def optimizers(
    module: nn.Module, name: str, family: FamilyModels
) -> Iterator[torch.optim.Optimizer]:
    """AdamW for everything, or with 8 bits; or Muon for `is_muon` parameters and AdamW for the
    rest."""
    if (own := family.optimizer()) is not None:
        yield own(trained(module))
        return
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad and name == "muon"]
    muon = [p for n, p in named if is_muon(family, n, p)]
    if muon:
        yield torch.optim.Muon(muon, lr=MUON_LEARNING_RATE)
    taken = {id(p) for p in muon}
    rest = [p for p in trained(module) if id(p) not in taken]
    if name == "adamw8bit":
        from torchao.optim import AdamW8bit  # type: ignore[import-untyped]

        yield AdamW8bit(rest, lr=LEARNING_RATE)
        return
    yield torch.optim.AdamW(rest, lr=LEARNING_RATE, fused=True)
