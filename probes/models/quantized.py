"""Frozen weights in 4 or 8 bits, as transformers has bitsandbytes store them.

Sources: quantizers/quantizer_bnb_4bit.py and integrations/bitsandbytes.py of transformers; QLoRA
(arXiv 2305.14314); LLM.int8() (arXiv 2208.07339).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from probes.faults import UnsupportedError

_ASKED: dict[str, dict[str, Any]] = {
    "nf4": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "int8": {"load_in_8bit": True},
}
"""Arguments of BitsAndBytesConfig."""
_MARKS = {"nf4": "is_loaded_in_4bit", "int8": "is_loaded_in_8bit"}
"""What peft looks for in a model."""


def linear(module: Any) -> int:
    """Parameters of the linear layers of a model of transformers that are quantized: all but its
    head, and what is tied or kept in fp32."""
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = _kept(module)
    return sum(
        part.weight.numel()
        for name, part in module.named_modules()
        if type(part) in (nn.Linear, Conv1D) and should_convert_module(name, kept)
    )


def _kept(module: Any) -> list[str]:
    from transformers.quantizers.base import HfQuantizer

    names: list[str] = HfQuantizer.get_modules_to_not_convert(
        module, None, module._keep_in_fp32_modules
    )
    return names


def replace(module: Any, base: str) -> None:
    """Put bitsandbytes' layers into the place of the linear ones of `module`. None of them has
    data.

    Raises:
        UnsupportedError: bitsandbytes is not there, or too old for transformers.
    """
    try:
        from transformers import BitsAndBytesConfig
        from transformers.integrations.bitsandbytes import replace_with_bnb_linear

        config = BitsAndBytesConfig(**_ASKED[base])  # type: ignore[no-untyped-call]
        replace_with_bnb_linear(module, _kept(module), config)
    except (ImportError, ValueError, NameError) as error:
        raise UnsupportedError(f"bitsandbytes: {error}", "base") from error
    setattr(module, _MARKS[base], True)


def fill(module: nn.Module, device: torch.device, draw: Callable[[nn.Module], object]) -> None:
    """Give `module` data on `device`, its parts drawn by `draw`. Of the matrices that are
    quantized no more than one is whole at a time."""
    parts = list(module.modules())
    layers = {id(part) for part in parts if _is_packed(part)}
    for part in parts:
        if id(part) not in layers:
            part.to_empty(device=device, recurse=False)
    for part in reversed(parts):
        if id(part) in layers:
            _fill(part, device, draw)
        else:
            draw(part)


def computes_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Have layers of 4 bits compute in `dtype`; those of 8 bits do so in that of what comes in."""
    for part in module.modules():
        if hasattr(part, "compute_type_is_set"):
            part.compute_dtype, part.compute_type_is_set = dtype, True  # type: ignore[assignment]


def _is_packed(part: nn.Module) -> bool:
    """Whether it is a layer of bitsandbytes; an adapter around it is none."""
    own = dict(part.named_parameters(recurse=False)).get("weight")
    return type(own).__name__ in ("Params4bit", "Int8Params")


def _fill(part: Any, device: torch.device, draw: Callable[[nn.Module], object]) -> None:
    from bitsandbytes import functional

    kind, kept = type(part.weight), vars(part.weight)
    for name, parameter in part.named_parameters(recurse=False):
        whole = torch.empty(parameter.shape, device=device)
        setattr(part, name, nn.Parameter(whole, requires_grad=False))
    draw(part)
    drawn: Tensor = part.weight.data
    if kind.__name__ == "Params4bit":
        with unset_fake_temporarily():  # a table is computed once, and kept
            functional.quantize_4bit(torch.zeros(64, device="cpu"), compress_statistics=True)
        packed, state = functional.quantize_4bit(
            drawn, compress_statistics=kept["compress_statistics"], quant_type=kept["quant_type"]
        )
        part.quant_state = state
        kept |= {"quant_state": state, "bnb_quantized": True, "module": part}
    else:
        packed, scales, _ = functional.int8_vectorwise_quant(drawn.to(torch.float16))
        kept |= {"CB": packed, "SCB": scales}
    if detect_fake_mode(packed) is None:
        part.weight = kind(packed, requires_grad=False, **kept)
    else:  # their subclasses take no tensors without data
        part.weight = nn.Parameter(packed, requires_grad=False)
        vars(part.weight).update(kept)
