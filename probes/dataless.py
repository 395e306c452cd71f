"""Tensors without data, on which models are counted and traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import init


@contextmanager
def dataless() -> Iterator[None]:
    """Whatever is made within has a shape and no values. A model may bring tensors that it made
    when it was imported.

    A truncated normal is drawn again where it looks too far off, so there is nothing to draw.
    """

    def nothing(tensor: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        return tensor

    # A name of torch's own, which another version may not have.
    drawing = patch.object(init, "_no_grad_trunc_normal_", nothing, create=True)
    with drawing, FakeTensorMode(allow_non_fake_inputs=True):
        yield
