"""torch's own data parallelism: DistributedDataParallel, or the bare module on one rank.

fp32 is plain; bf16 and fp16 keep fp32 weights and run the model under autocast, fp16 with a loss
scaler, which is what torch's documentation advises for mixed precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autotune.wire import Start
from probes.models import factory

CLIP_NORM = 1.0
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DdpEngine:
    """Replicated weights; gradients averaged between ranks during the last backward."""

    def __init__(self, start: Start, device: torch.device) -> None:
        module = factory.build(start.model, device)
        self.parameters = sum(p.numel() for p in module.parameters())
        self._module = module
        self._model: nn.Module = module
        if start.world_size > 1:
            # The gradients live in the buckets: one copy of them, not two.
            self._model = DistributedDataParallel(
                module, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        self._optimizers = list(_optimizers(module, start.optimizer))
        self._device_type = device.type
        self._autocast_dtype = _AUTOCAST.get(start.dtype)
        self._scaler = torch.amp.GradScaler(device.type, enabled=start.dtype == "fp16")

    def forward_backward(self, ids_bt: Tensor, targets_bt: Tensor, *, last: bool) -> Tensor:
        with self._sync(last):
            with self._autocast():
                loss: Tensor = self._model(ids_bt, targets_bt)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        for optimizer in self._optimizers:
            self._scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP_NORM)
        for optimizer in self._optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        self.reset()

    def reset(self) -> None:
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


def _optimizers(module: nn.Module, name: str) -> Iterator[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest.

    Muon is defined for hidden matrices alone; embedding, head and norms stay with AdamW.
    """
    matrices = [p for p in module.get_submodule("blocks").parameters() if p.ndim == 2]
    muon = matrices if name == "muon" else []
    if muon:
        yield torch.optim.Muon(muon, lr=2e-3)
    taken = {id(p) for p in muon}
    rest = [p for p in module.parameters() if id(p) not in taken]
    yield torch.optim.AdamW(rest, lr=3e-4, fused=True)
