"""From a model's name to the module."""

from __future__ import annotations

from torch import nn

from autotune.wire.messages import ModelSpec
from probes.faults import UnsupportedError
from probes.models.gpt import Gpt


def build(spec: ModelSpec) -> nn.Module:
    """The module that `spec` names, random weights, made under the caller's device and dtype.

    Raises:
        UnsupportedError: this version knows no such model.
    """
    if spec.name != "gpt":
        raise UnsupportedError(f"model {spec.name} is not known to this version of the probes")
    return Gpt(spec)
