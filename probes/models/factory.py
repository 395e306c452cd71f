"""From a model's name to the module."""

from __future__ import annotations

import torch
from torch import nn

from autotune.wire import ModelSpec
from probes.faults import UnsupportedError
from probes.models import gpt


def build(spec: ModelSpec, device: torch.device) -> nn.Module:
    """The module that `spec` names, on `device`, fp32, random weights.

    Raises:
        UnsupportedError: this version knows no such model.
    """
    if spec.name != "gpt":
        raise UnsupportedError(f"model {spec.name} is not known to this version of the probes")
    return gpt.build(spec, device)
