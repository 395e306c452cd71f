"""Engines: what turns a model into training steps. One Protocol, one file per engine."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from autotune.wire import Start
from probes.faults import UnsupportedError


class Engine(Protocol):
    """A model, its optimizer and the communication between ranks. Batches are (B, T) int64."""

    parameters: int
    """Parameters of the whole model, all ranks together."""

    def forward_backward(self, ids_bt: Tensor, targets_bt: Tensor, *, last: bool) -> Tensor:
        """One micro-step; gradients are reduced between ranks at the `last` of an optimizer step.

        Returns the detached loss.
        """
        ...

    def update(self) -> None:
        """Clip, optimizer step, gradients dropped."""
        ...

    def reset(self) -> None:
        """Drop gradients and whatever else a probe left behind."""
        ...


def build(start: Start, device: torch.device) -> Engine:
    """The engine that `start` asks for.

    Raises:
        UnsupportedError: this version knows no such engine.
    """
    if start.engine == "ddp":
        from probes.engines.ddp import DdpEngine

        return DdpEngine(start, device)
    raise UnsupportedError(f"engine {start.engine} is not known to this version of the probes")
