"""Products of linear layers in fp8, as torchao trains with them.

Sources: torchao.float8; FP8 Formats for Deep Learning (arXiv 2209.05433).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType

import torch
from torch import nn

from probes.faults import UnsupportedError


def convert(blocks: Iterable[nn.Module], recipe: str) -> None:
    """Have the linear layers of `blocks` multiply by a `recipe` of torchao. Sizes that are no
    multiple of 16 stay: no kernel takes them.

    Raises:
        UnsupportedError: torchao or the device cannot, or no layer has such sizes.
    """
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        raise UnsupportedError("fp8 needs a GPU of compute capability 8.9 or newer", "float8")
    try:
        from torchao.float8 import (  # type: ignore[import-untyped]
            Float8LinearConfig,
            convert_to_float8_training,
        )

        config = Float8LinearConfig.from_recipe_name(recipe)
    except (ImportError, AssertionError) as error:
        raise UnsupportedError(f"torchao: {error}", "float8") from error
    converted = 0
    for block in blocks:
        before = {
            name: part for name, part in block.named_modules()
            if isinstance(part, nn.Linear) and not (part.in_features | part.out_features) % 16
        }  # fmt: skip
        convert_to_float8_training(
            block, config=config, module_filter_fn=lambda _, name, of=before: name in of
        )
        for name, part in before.items():
            reset = type(part).reset_parameters
            block.get_submodule(name).reset_parameters = MethodType(  # type: ignore[assignment]
                reset, block.get_submodule(name)
            )
        converted += len(before)
    if not converted:
        raise UnsupportedError("no linear layer of a block has sizes in multiples of 16", "float8")
