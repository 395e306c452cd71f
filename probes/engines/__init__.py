"""Engines run training steps of a model. One Protocol, one file per engine."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from autotune.wire.ranks import ModelSpec, Start
from probes import routing
from probes.compiling import compile_blocks
from probes.faults import UnsupportedError
from probes.models import Batch, FamilyModels, float8, quantized
from probes.world import World


class Engine(Protocol):
    """A model, its optimizer and the communication between ranks."""

    parameters: int
    """Parameters of the whole model, all ranks together."""

    def prepare(self, micro_batch: int, micro_steps: int, weight: float = 1.0) -> None:
        """Get ready for another candidate: `micro_steps` of `micro_batch` samples a step. This
        rank's gradients count with `weight`, as ranks may have unlike samples.

        Drops gradients, the optimizer's state if steps make it, and whatever else the last probe
        left behind.
        """
        ...

    def forward_backward(self, batch: Batch, *, last: bool) -> Tensor:
        """One micro-step. Ranks reduce gradients in the `last` one of an optimizer step. Returns
        the detached loss of this micro-batch."""
        ...

    def update(self) -> None:
        """Clip, optimizer step, gradients dropped."""
        ...

    def evaluate(self, batch: Batch) -> list[Tensor]:
        """A forward pass in evaluation mode, without gradients. Returns the logits in fp32, if the
        model gives any."""
        ...

    def save(self, write: Callable[[Any], None], *, full: bool) -> None:
        """Make a checkpoint of weights and optimizer: `write` each of this rank's files."""
        ...


@dataclass(frozen=True)
class EngineRow:
    """The place of an engine, and facts about it without an import of its library."""

    path: str
    """Its class as `module:class`."""
    package: str | None = None
    """Its library beside torch."""
    needs_group: bool = True
    """Whether a single rank needs a process group, too."""


ENGINES = {
    "ddp": EngineRow("probes.engines.ddp:DdpEngine", needs_group=False),
    "deepspeed": EngineRow("probes.engines.deepspeed:DeepSpeedEngine", package="deepspeed"),
    "fsdp": EngineRow("probes.engines.fsdp:FsdpEngine"),
}
"""The rows have the names of those in `autotune.space.engines`."""


def load(name: str) -> Callable[[Start, World], Engine]:
    """The class of the engine `name`; its library is imported here.

    The class may raise `UnsupportedError` for an impossible combination.

    Raises:
        UnsupportedError: this version knows no such engine.
    """
    if name not in ENGINES:
        raise UnsupportedError(f"engine {name} is not known to this version of the probes")
    module, _, attribute = ENGINES[name].path.partition(":")
    engine: Callable[[Start, World], Engine] = getattr(importlib.import_module(module), attribute)
    return engine


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def stored_as(param_dtype: str) -> Iterator[None]:
    """A context in which weights have that dtype; fp32 for "auto"."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES.get(param_dtype, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def made(spec: ModelSpec, family: FamilyModels, dtype: str = "fp32") -> nn.Module:
    """The module of `spec`, with products in `dtype`, its experts forced.

    Its blocks are compiled if that is requested.
    """
    module = family.make(spec)
    quantized.computes_in(module, DTYPES[dtype])
    if spec.float8 != "off":
        float8.convert(family.blocks(module), spec.float8)
    routing.install(module)
    if spec.compile == "on":
        blocks = list(family.blocks(module))
        if not blocks:
            raise UnsupportedError(f"{type(module).__name__} has no blocks to compile", "compile")
        compile_blocks(blocks, dynamic=spec.dynamic == "on")
    return module


def is_muon(family: FamilyModels, name: str, parameter: Tensor) -> bool:
    """Whether Muon steps `parameter`: it is a matrix of a block."""
    return len(_whole_shape(parameter)) == 2 and family.is_block_weight(name)


def evaluated(module: nn.Module, forward: Callable[[], object]) -> list[Tensor]:
    """The logits in fp32 that `module` gives in `forward`, as accelerate hands them to Trainer."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: object, found: object) -> None:
        if isinstance(logits := getattr(found, "logits", None), Tensor):
            kept.append(logits.float())

    hook = module.register_forward_hook(keep)
    module.eval()
    try:
        with torch.no_grad():
            forward()
    finally:
        hook.remove()
        module.train()
    return kept


class FirstStep:
    """Has the next step of these optimizers make their state, as training's first one does.

    Training makes it, and cuBLAS's workspace, among what the first step has just freed. Each
    keeps a large segment of the allocator from being used whole: up to a quarter more is reserved.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._lazy = [each.state for each in optimizers if not each.state]

    def come(self) -> bool:
        """Returns whether there is such state."""
        for state in self._lazy:
            state.clear()
        return bool(self._lazy)


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that the optimizer steps."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def count(module: nn.Module) -> int:
    """Parameters of a whole module. This rank may only have DeepSpeed's shard of it, and two
    parameters may share a byte."""
    return sum(math.prod(_whole_shape(parameter)) for parameter in module.parameters())


def _whole_shape(parameter: Tensor) -> tuple[int, ...]:
    packed = getattr(parameter, "quant_state", None)
    return tuple(packed.shape if packed else getattr(parameter, "ds_shape", parameter.shape))
