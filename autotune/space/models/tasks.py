"""What models of transformers are trained for, and the samples of each task.

`probes/models/samples.py` makes batches of the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from autotune.errors import UsageError
from autotune.space.models.defaults import LENGTHS, ImageSize, shown_sizes

Task = Literal[
    "causal", "seq2seq", "masked", "classification",
    "image-classification", "speech-seq2seq", "ctc", "image-text",
]  # fmt: skip
TASKS: tuple[str, ...] = get_args(Task)
_ENDS = {
    "ForCausalLM": "causal", "LMHeadModel": "causal", "ForConditionalGeneration": "seq2seq",
    "ForMaskedLM": "masked", "ForPreTraining": "masked",
    "ForSequenceClassification": "classification",
    "ForImageClassification": "image-classification", "ForCTC": "ctc",
}  # fmt: skip
"""Tasks by the ends of architectures' names."""
QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Types of model whose images have any size: each patch is an input."""
ONE_SIZE = ("llava", "gemma3", "idefics3", "smolvlm")
"""Types of model whose images have the size that the config names."""
SEEING = (*QWEN_VL, *ONE_SIZE)
_RATE = 16_000
"""Samples of sound in a second, of all known models."""
_FRAMES = 100
"""Frames of a spectrogram in a second. Source: Whisper (arXiv 2212.04356), section 2.2."""
_IMAGE = (448, 448)
_MARKS = 3
"""The least tokens beside an image: its two marks, and one to learn."""
_TEXT = {"cpu": 64, "cuda": 256}
"""Tokens beside the largest image, if the user names no length."""


def guessed(config: Mapping[str, Any]) -> str | None:
    """The task that a config names; None if it names none."""
    if _sees(config, config.get("vision_config")):
        return "image-text"
    if config.get("is_encoder_decoder"):
        return "speech-seq2seq" if "num_mel_bins" in config else "seq2seq"
    names = map(str, config.get("architectures") or ())
    return next(
        (task for name in names for end, task in _ENDS.items() if name.endswith(end)), None
    )


def _sees(config: Mapping[str, Any], vision: Mapping[str, Any] | None) -> bool:
    """Whether images can be made for it."""
    if vision is None or config["model_type"] in QWEN_VL:
        return vision is not None
    sized = {"image_size", "patch_size"} <= vision.keys()
    any_size = vision.get("model_type") == "pixtral"  # its images have tokens by their size
    return config["model_type"] in ONE_SIZE and sized and not any_size


class Samples:
    """Those of a task; here, of text. A method that gets a recipe finds `fields` in it."""

    one_length = ""
    """Why all samples have one length; empty if they need not."""
    has_text = True
    """Whether tools that train models of text take them."""
    whole_loss = ""
    """Why the loss has nothing to cut into chunks; empty if it has."""

    def fields(self, config: dict[str, Any], sizes: Sequence[ImageSize] | None) -> dict[str, Any]:
        """What the recipe says of them: "token", what one is, unless it is of text. It may change
        the `config`. Raises ValueError with the reason if it lacks a field, or has other sizes."""
        if sizes is not None:
            raise ValueError("its samples have no images; leave it out")
        return {}

    def lengths(self, recipe: Mapping[str, Any], device_kind: str) -> tuple[int, ...]:
        """Values of seq_len to search if the user names none."""
        return LENGTHS[device_kind]

    def most(self, config: Mapping[str, Any]) -> int | None:
        """The largest seq_len, unless the model's positions tell it."""
        return None

    def wrong(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        """Why no sample has that seq_len, and what would be right; empty if some have."""
        return ""


class _Few(Samples):
    """Text of which a whole sample has a few logits."""

    whole_loss = "classification has a few logits a sample, and nothing to cut into chunks"


class _Images(_Few):
    """Images, one a sample: seq_len is the number of their patches, or 1 without patches."""

    has_text = False
    one_length = "its samples are images of one size"

    def fields(self, config: dict[str, Any], sizes: Sequence[ImageSize] | None) -> dict[str, Any]:
        side = _number(config, "patch_size", 1)
        if sizes is not None:
            if len(sizes) > 1:
                raise ValueError("its images have one size; name one")
            _check_divides(sizes, side)
            [(width, height)] = sizes
            config["image_size"] = width if width == height else [height, width]
        size: Any = config.get("image_size")
        height, width = size if isinstance(size, list) else (size, size)
        if not isinstance(height, int) or not isinstance(width, int):
            raise ValueError("its config has no image_size")
        image, patches = f"an image of {width}x{height}", (height // side) * (width // side)
        if side == 1:
            return {"token": image, "patches": 1}
        return {"token": f"a patch, {patches} of {image}", "patches": patches}

    def lengths(self, recipe: Mapping[str, Any], device_kind: str) -> tuple[int, ...]:
        return (recipe["patches"],)

    def wrong(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        if seq_len == recipe["patches"]:
            return ""
        return f"a token is {recipe['token']}, which have one size; leave --seq-len out"


class _Speech(Samples):
    """A window of sound as a spectrogram, always whole, and its transcript of seq_len tokens."""

    has_text = False
    one_length = "each sample has the whole window of sound"
    whole_loss = "its decoder's inputs are made beside its loss"

    def fields(self, config: dict[str, Any], sizes: Sequence[ImageSize] | None) -> dict[str, Any]:
        super().fields(config, sizes)
        seconds = 2 * _number(config, "max_source_positions") / _FRAMES
        _number(config, "num_mel_bins")
        return {"token": f"a token of the transcript, beside {seconds:g} s of sound"}

    def most(self, config: Mapping[str, Any]) -> int | None:
        return _number(config, "max_target_positions", 448)


class _Sound(Samples):
    """Sound, whose seq_len counts the frames that blocks see, and letters that it says."""

    has_text = False
    one_length = "its sound has one length"
    whole_loss = "CTC needs all logits at once"

    def fields(self, config: dict[str, Any], sizes: Sequence[ImageSize] | None) -> dict[str, Any]:
        super().fields(config, sizes)
        if not isinstance(config.get("conv_stride"), list):
            raise ValueError("its config has no conv_stride: only models of raw sound are known")
        samples = math.prod(config["conv_stride"])
        return {"token": f"{1000 * samples / _RATE:g} ms of sound, {samples} samples of it"}

    def wrong(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        config = recipe["config"]
        masked = _number(config, "mask_time_length", 10)
        if seq_len > masked:
            return ""
        return (
            f"a token is {recipe['token']}, and training masks {masked} of them at once; use"
            f" --seq-len {masked + 1} or more"
        )


class _ImagesAndText(Samples):
    """One image and text around it; seq_len counts both."""

    one_length = "their lengths come from the sizes of images, not from a file of lengths"

    def fields(self, config: dict[str, Any], sizes: Sequence[ImageSize] | None) -> dict[str, Any]:
        if config["model_type"] not in SEEING:
            raise ValueError(f"images for a {config['model_type']} are not known; known:"
                             f" {', '.join(SEEING)}")  # fmt: skip
        vision = config["vision_config"]
        if config["model_type"] in ONE_SIZE:
            side = _number(vision, "image_size")
            if {*(sizes or ())} - {(side, side)}:
                raise ValueError(f"its images have {side}x{side} pixels; leave it out")
            image = {"size": [side, side], "tokens": _tokens(config, vision, side)}
            return {"token": f"one of text, or of an image of {side}x{side}", "images": [image]}
        side = _number(vision, "patch_size") * _number(vision, "spatial_merge_size", 2)
        sizes = sizes or [_IMAGE if _IMAGE[0] % side == 0 else (8 * side, 8 * side)]
        _check_divides(sizes, side)
        return {
            "token": f"one of text, or {side}x{side} pixels of an image",
            "images": [
                {"size": list(size), "tokens": math.prod(size) // side**2}
                for size in sorted(set(sizes), key=math.prod)
            ],
        }

    def lengths(self, recipe: Mapping[str, Any], device_kind: str) -> tuple[int, ...]:
        return (recipe["images"][-1]["tokens"] + _TEXT[device_kind],)

    def wrong(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        (width, height), tokens = recipe["images"][-1].values()
        if seq_len >= tokens + _MARKS:
            return ""
        return (
            f"an image of {width}x{height} takes {tokens} tokens, and {_MARKS - 1} mark it; use"
            f" --seq-len {tokens + _MARKS} or more, or smaller images"
        )


def _tokens(config: Mapping[str, Any], vision: Mapping[str, Any], side: int) -> int:
    """Tokens that the text has for an image, as transformers' models of one size make them."""
    patches = (side // _number(vision, "patch_size")) ** 2
    match config["model_type"]:
        case "gemma3":
            return _number(config, "mm_tokens_per_image", 256)
        case "llava":  # CLIP has one token more, which is left out by default
            all_taken = config.get("vision_feature_select_strategy") == "full"
            clip = vision.get("model_type") == "clip_vision_model"
            return patches - 1 + int(all_taken) + int(clip)
    return patches // _number(config, "scale_factor", 2) ** 2


def _check_divides(sizes: Sequence[ImageSize], side: int) -> None:
    for width, height in sizes:
        if width % side or height % side:
            near = [max(side, round(each / side) * side) for each in (width, height)]
            raise ValueError(
                f"its images are cut into squares of {side} pixels, which do not fill"
                f" {width}x{height}; use {near[0]}x{near[1]}"
            )


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = config.get(name, default)
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"its config has no {name}")
    return found


SAMPLES: dict[str, Samples] = {
    **dict.fromkeys(("causal", "seq2seq", "masked"), Samples()),
    "classification": _Few(),
    "image-classification": _Images(),
    "speech-seq2seq": _Speech(),
    "ctc": _Sound(),
    "image-text": _ImagesAndText(),
}


def samples(
    model: str, task: str, config: dict[str, Any], sizes: Sequence[ImageSize] | None
) -> dict[str, Any]:
    """`Samples.fields` of a task. Raises `UsageError` instead, which names the flag."""
    try:
        return SAMPLES[task].fields(config, sizes)
    except ValueError as error:
        flag = f"--image-size {shown_sizes(sizes)}: {model}" if sizes else f"--model {model}"
        raise UsageError(f"{flag}: {error}") from error
