"""Engines: what turns a model into training steps. One Protocol, one file per engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from autotune.wire.messages import Start
from probes.faults import UnsupportedError
from probes.world import World


class Engine(Protocol):
    """A model, its optimizer and the communication between ranks. Batches are (B, T) int64."""

    parameters: int
    """Parameters of the whole model, all ranks together."""

    def prepare(self, micro_batch: int, micro_steps: int) -> None:
        """Get ready for another candidate: `micro_steps` of `micro_batch` samples a step.

        Drops gradients and whatever else the last probe left behind.
        """
        ...

    def forward_backward(self, ids_bt: Tensor, targets_bt: Tensor, *, last: bool) -> Tensor:
        """One micro-step; gradients are reduced between ranks at the `last` of an optimizer step.

        Returns the detached loss of this micro-batch.
        """
        ...

    def update(self) -> None:
        """Clip, optimizer step, gradients dropped."""
        ...


def load(name: str) -> Callable[[Start, World], Engine]:
    """The class of the engine `name`; its library is imported here.

    What it builds may raise `UnsupportedError`: the engine does not do this combination.

    Raises:
        UnsupportedError: this version knows no such engine.
    """
    if name == "ddp":
        from probes.engines.ddp import DdpEngine

        return DdpEngine
    if name == "deepspeed":
        from probes.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine
    if name == "fsdp":
        from probes.engines.fsdp import FsdpEngine

        return FsdpEngine
    raise UnsupportedError(f"engine {name} is not known to this version of the probes")


def is_muon(name: str, parameter: Tensor) -> bool:
    """Whether Muon is for `parameter`: the blocks' matrices; embedding, head and norms are not."""
    return len(_whole_shape(parameter)) == 2 and name.startswith("blocks.")


def count(module: nn.Module) -> int:
    """Parameters of a whole module, also where DeepSpeed has left this rank a shard of it."""
    return sum(math.prod(_whole_shape(parameter)) for parameter in module.parameters())


def _whole_shape(parameter: Tensor) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
