"""Samples of images and sound for models of transformers. Their facts are in the recipe
(autotune/space/models/tasks.py).

B: samples, T: seq_len, U: letters or tokens that a sample of sound says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from autotune.wire.ranks import ModelSpec
from probes.dataless import Lengths
from probes.faults import UnsupportedError
from probes.models import Batch, chunked

_SPOKEN = 4
"""Frames of 20 ms of sound for each letter: speech has about 12 to 15 letters a second."""
_LABEL = "labels"
_MARKS = ("image_token_id", "video_token_id", "boi_token_id", "eoi_token_id",
          "vision_start_token_id", "vision_end_token_id")  # fmt: skip
"""Tokens of a config that no text has; the last two stand before and after an image."""

Generator = torch.Generator | None
Draw = Callable[[int], Tensor]
"""Draws (B, n) random ids for a given n."""


def images(config: Any, micro_batch: int, generator: Generator) -> Batch:
    """`pixel_values` (B, channels, height, width) and a class for each."""
    size = config.image_size
    sides = [size, size] if isinstance(size, int) else list(size)
    shape = (micro_batch, getattr(config, "num_channels", 3), *sides)
    return {
        "pixel_values": torch.randn(shape, generator=generator),
        _LABEL: torch.randint(config.num_labels, (micro_batch,), generator=generator),
    }


def speech(config: Any, micro_batch: int, labels_bt: Tensor, generator: Generator) -> Batch:
    """`input_features` (B, mel bins, frames): a whole window, and what it says."""
    shape = (micro_batch, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": torch.randn(shape, generator=generator), _LABEL: labels_bt}


def sound(config: Any, micro_batch: int, seq_len: int, draw: Draw, generator: Generator) -> Batch:
    """`input_values` (B, samples) of which convolutions make T frames, and letters (B, U)."""
    samples = seq_len
    for kernel, stride in zip(config.conv_kernel[::-1], config.conv_stride[::-1], strict=True):
        samples = (samples - 1) * stride + kernel
    return {
        "input_values": torch.randn((micro_batch, samples), generator=generator),
        _LABEL: draw(max(1, seq_len // _SPOKEN)),
    }


def ctc_loss(config: Any, logits_btv: Tensor, labels_bu: Tensor) -> Tensor:
    """As models of transformers compute it, where all samples are whole (ForCTC.forward)."""
    log_tbv = F.log_softmax(logits_btv, dim=-1, dtype=torch.float32).transpose(0, 1)
    if isinstance(logits_btv, FakeTensor):
        return -log_tbv.mean()  # the loss itself has no form without data, and holds little
    t, b, _ = log_tbv.shape
    ctc: Any = F.ctc_loss  # whose lengths may be numbers, whatever it says of their type
    with torch.backends.cudnn.flags(enabled=False):
        loss: Tensor = ctc(
            log_tbv, labels_bu, (t,) * b, labels_bu.shape[1:] * b, blank=config.pad_token_id,
            reduction=config.ctc_loss_reduction, zero_infinity=config.ctc_zero_infinity,
        )  # fmt: skip
    return loss


def images_and_text(
    spec: ModelSpec, config: Any, ids_bt: Tensor, lengths: Sequence[int], generator: Generator
) -> Batch:
    """A sample for each length: `ids_bt` with an image between its marks, and its pixels. The
    image is the largest that a sample of that length has."""
    vision, ids_bt = config.vision_config, ids_bt.clone()
    marks = [found for name in _MARKS if (found := getattr(config, name, None)) is not None]
    plain = next(n for n in range(len(marks) + 1) if n not in marks)
    ids_bt[torch.isin(ids_bt, torch.tensor(marks))] = plain
    images = [_image(spec, length) for length in lengths]
    tokens_b1 = torch.tensor([[tokens] for _, tokens in images])
    place_t = torch.arange(ids_bt.shape[1])
    ids_bt[:, 0], after = marks[-2:] if len(marks) > 2 else (plain, plain)
    ids_bt = ids_bt.masked_fill(place_t == tokens_b1 + 1, after)
    image_bt = (place_t > 0) & (place_t <= tokens_b1)
    ids_bt = ids_bt.masked_fill(image_bt, config.image_token_id)
    batch = {"input_ids": ids_bt, _LABEL: ids_bt.masked_fill(image_bt, chunked.IGNORED)}
    if not hasattr(config, "vision_start_token_id"):
        several = (1,) if hasattr(config, "scale_factor") else ()  # images of a sample
        (width, height), _ = images[0]
        shape = (len(images), *several, getattr(vision, "num_channels", 3), height, width)
        batch["pixel_values"] = torch.randn(shape, generator=generator)
        if config.model_type == "gemma3":
            batch["token_type_ids"] = image_bt.int()  # tokens of an image attend to one another
        return batch
    side = vision.patch_size
    grids = [[1, height // side, width // side] for (width, height), _ in images]
    with unset_fake_temporarily():
        grid_b3 = torch.tensor(grids, device="cpu")
    channels = getattr(vision, "in_channels", 3)
    inputs = channels * vision.temporal_patch_size * vision.patch_size**2
    return batch | {
        "mm_token_type_ids": image_bt.int(),
        "pixel_values": torch.randn(
            (sum(h * w for _, h, w in grids), inputs), generator=generator
        ),
        "image_grid_thw": grid_b3,
    }


def _image(spec: ModelSpec, length: int) -> tuple[tuple[int, int], int]:
    """Size and tokens of the image in a sample of that length."""
    known = spec.recipe["images"]
    text = spec.recipe["longest"] - known[-1]["tokens"] if "longest" in spec.recipe else 2
    fitting = [each for each in known if each["tokens"] + text <= length]
    if not fitting:
        raise UnsupportedError(f"no image fits in {length} tokens")
    return tuple(fitting[-1]["size"]), fitting[-1]["tokens"]


class _OnHost(Tensor):
    """Sizes of images and what follows from them. Values are known here, and not in others."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = (args, kwargs or {})
        others = [each for each in tree_leaves(given)
                  if isinstance(each, Tensor) and not isinstance(each, cls)]  # fmt: skip
        if not others:
            with _disable_current_modes():
                found = super().__torch_function__(func, types, *given)  # type: ignore[no-untyped-call]
            return Lengths(found) if func is Tensor.tolist else found
        with torch._C.DisableTorchFunctionSubclass():
            args, more = tree_map_only(
                cls, lambda each: each.as_subclass(Tensor).to(others[0].device), given
            )
            return func(*args, **more)


class _Scatter(torch.autograd.Function):
    """What Tensor.masked_scatter makes and keeps. It would count the mask's values."""

    @staticmethod
    def forward(ctx: Any, into: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.sizes = source.shape
        return into.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        [grad], [mask] = grads, ctx.saved_tensors
        return grad.masked_fill(mask, 0), None, grad.new_zeros(ctx.sizes)


def _scattered(into: Tensor, mask: Tensor, source: Tensor) -> Any:
    apply: Any = _Scatter.apply
    return apply(into, mask, source)


def _masked_sound(self: Any, hidden_btd: Tensor, *_: Any, **__: Any) -> Tensor:
    """As models of transformers mask frames of sound, wherever these are."""
    mask_bt1 = torch.zeros_like(hidden_btd[..., :1], dtype=torch.bool)
    return torch.where(mask_bt1, self.masked_spec_embed.to(hidden_btd.dtype), hidden_btd)


def _seen(model: Any, pixel_values: Tensor, *_: Any, **__: Any) -> Any:
    """As Idefics 3 and SmolVLM see images of which none is padding."""
    seen = model.vision_model(pixel_values.flatten(0, 1).to(model.dtype, copy=True))
    seen.pooler_output = list(model.connector(seen.last_hidden_state))
    return seen


@contextmanager
def without_data(module: nn.Module, batch: Batch) -> Iterator[Batch]:
    """`batch` for a step of `module` whose tensors have no values, on the CPU or an emulated
    device. What a model makes of values has the right size in this context."""
    with ExitStack() as stack:
        for part in module.modules():
            if hasattr(part, "_mask_hidden_states"):
                stack.enter_context(patch.object(type(part), "_mask_hidden_states", _masked_sound))
        if "image_grid_thw" in batch:
            batch = dict(batch)
            del batch["mm_token_type_ids"]  # of which positions would be made
            ids_bt, grid_b3 = batch["input_ids"], batch["image_grid_thw"]
            batch["position_ids"] = torch.zeros_like(ids_bt).expand(3, *ids_bt.shape)
            batch["image_grid_thw"] = grid_b3.cpu().as_subclass(_OnHost)
            of_images = next(each for each in module.modules() if hasattr(each, "get_rope_index"))
            code = sys.modules[type(of_images).__module__]
            for name in [name for name in vars(code) if name.startswith("get_vision_")]:
                stack.enter_context(patch.object(code, name, _on_host(getattr(code, name))))
        if "pixel_values" in batch:
            for part in module.modules():
                if hasattr(part, "connector"):
                    seen = partial(_seen, part)
                    stack.enter_context(patch.object(part, "get_image_features", seen))
            stack.enter_context(patch.object(Tensor, "masked_scatter", _scattered))
            stack.enter_context(patch.dict(os.environ, TRANSFORMERS_DISABLE_TORCH_CHECK="1"))
        yield batch


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **more: Any) -> Any:
        with _disable_current_modes():
            found = function(*args, **more)
        return tree_map_only(Tensor, lambda each: each.as_subclass(_OnHost), found)

    return called
