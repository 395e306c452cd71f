"""DeepSpeed ZeRO 0 to 3, with offload, built from the config dict that the study sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from tempfile import TemporaryDirectory
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from torch import Tensor

from autotune.wire.ranks import Start
from probes import memory
from probes.engines import DTYPES, FirstStep, count, evaluated, is_muon, made, trained
from probes.faults import UnsupportedError
from probes.models import Batch, FamilyModels, family
from probes.world import World

with suppress(ImportError):  # ranks with ZeRO import it and inductor, in 3 s
    from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401


_LINKED = "_hp_optimizer_states_linked"
"""Whether weights of stages 1 and 2 are linked to the optimizer's state."""


class DeepSpeedEngine:
    """A deepspeed engine whose batch sizes change in place."""

    def __init__(self, start: Start, world: World) -> None:
        # DeepSpeed reads its rank from the launcher's variables.
        os.environ |= {
            "RANK": str(world.rank),
            "LOCAL_RANK": str(start.local_rank),
            "WORLD_SIZE": str(world.size),
        }
        # With it, DeepSpeed makes buffers for inference in /dev/shm that nobody removes.
        os.environ.pop("LOCAL_SIZE", None)
        if world.device.type == "cpu":
            # The op for those buffers takes a minute to compile. DeepSpeed can do without it.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        else:
            free_memory_from_torch(get_accelerator())
        deepspeed.init_distributed()  # takes the existing process group
        self._family = family(start.model.name)
        self._dtype = DTYPES[_kept(start)]
        with _own_reasons():
            with _placed(start, world, self._family):
                module = made(start.model, self._family, start.dtype)
            self.parameters = count(module)
            for name, parameter in module.named_parameters():
                muon = start.model.optimizer == "muon" and is_muon(self._family, name, parameter)
                parameter.use_muon = muon  # type: ignore[attr-defined]
            own = self._family.optimizer()
            self._engine: Any = deepspeed.initialize(
                model=module,
                model_parameters=trained(module),
                optimizer=None if own is None else own(trained(module)),
                config=start.engine_config,
            )[0]
        # State in host memory takes no segment of the device's allocator.
        here = start.model.offload == "none"
        self._first_step = FirstStep([self._engine.basic_optimizer] if here else [])
        self._world_size = world.size

    def prepare(self, micro_batch: int, micro_steps: int, weight: float = 1.0) -> None:
        if weight != 1.0:
            raise UnsupportedError(
                "DeepSpeed has one micro-batch for all ranks", "micro_batch_per_rank"
            )
        self._engine.zero_grad()
        if self._first_step.come() and hasattr(self._engine.optimizer, _LINKED):
            setattr(self._engine.optimizer, _LINKED, False)  # the first step links them
            for parameter in self._engine.module.parameters():
                if (of := getattr(parameter, "_hp_mapping", None)) is not None:  # none if frozen
                    of.optim_fragment = None
        self._engine.set_train_micro_batch_size(micro_batch)
        self._engine.set_train_batch_size(micro_batch * micro_steps * self._world_size)

    def forward_backward(self, batch: Batch, *, last: bool) -> Tensor:
        self._engine.set_gradient_accumulation_boundary(last)
        loss = self._family.loss(self._engine, self._cast(batch))
        self._engine.backward(loss)
        if not last:
            self._engine.step()  # counts the micro-step; the update comes at the last one
        return loss.detach()

    def evaluate(self, batch: Batch) -> list[Tensor]:
        cast = self._cast(batch)
        return evaluated(self._engine, lambda: self._family.loss(self._engine, cast))

    def save(self, write: Callable[[Any], None], *, full: bool) -> None:
        self._engine.checkpoint_engine = _Written(write)
        with TemporaryDirectory() as folder:  # small files of its own
            self._engine.save_checkpoint(folder, save_latest=False, exclude_frozen_parameters=True)
        if full and self._engine.zero_optimization_partition_weights():
            whole = self._engine._zero3_consolidated_16bit_state_dict(
                exclude_frozen_parameters=True
            )
            if whole is not None:  # of the first rank
                write(whole)

    def _cast(self, batch: Batch) -> Batch:
        """Floats in the weights' dtype: in bf16 and fp16 DeepSpeed only casts weights."""
        return {
            name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor
            for name, tensor in batch.items()
        }

    def update(self) -> None:
        self._engine.step()


class _Written(TorchCheckpointEngine):  # type: ignore[misc]
    """Has `write` take the files of a checkpoint."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self._write = write

    def save(self, state_dict: Any, path: str) -> None:
        self._write(state_dict)


def free_memory_from_torch(accelerator: Any) -> None:
    """Have DeepSpeed ask torch for a device's free memory, within this process's limit.

    Its own code expects integers in CUDA_VISIBLE_DEVICES, but ranks have UUIDs there. Stages 1 and
    2 ask while they are built (`available_memory` in cuda_accelerator.py).
    """

    def available_memory(device_index: int | None = None) -> int:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device_index)
        limit_bytes = total_bytes * torch.cuda.get_per_process_memory_fraction(device_index)
        return min(free_bytes, int(limit_bytes) - torch.cuda.memory_reserved(device_index))

    accelerator.available_memory = available_memory


def _kept(start: Start) -> str:
    """The dtype of the weights in products."""
    return start.dtype if start.model.param_dtype == "auto" else start.model.param_dtype


@contextmanager
def _own_reasons() -> Iterator[None]:
    """Turn DeepSpeed's refusals into `UnsupportedError`, with its own text."""
    try:
        yield
    except (ValueError, AssertionError) as error:
        raise UnsupportedError(f"DeepSpeed: {error}") from error


@contextmanager
def _placed(start: Start, world: World, family: FamilyModels) -> Iterator[None]:
    """A context to make the module in the training dtype: for stage 3 as shards from the start,
    else directly on the device. Neither holds more than training will."""
    sharded = start.model.zero_stage == 3
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[_kept(start)])
    try:
        with (
            family.sharded(start.engine_config) if sharded else torch.device(world.device),
            memory.given_back() if sharded and world.device.type == "cpu" else nullcontext(),
        ):
            yield
    finally:
        torch.set_default_dtype(before)
