"""The model that is tuned."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from autotune.errors import UsageError
from autotune.space.models import family_name, gpt
from autotune.space.models.defaults import (
    GptTraits,
    ImageSize,
    Lora,
    ModelRequest,
    parse_lora,
    parse_sizes,
)
from autotune.space.models.gpt import PRESETS, parse_gpt
from autotune.space.models.hf import kept
from autotune.space.models.tasks import TASKS
from autotune.space.options.flag import as_it_is, checked, option, switch, word
from autotune.units import parse_int
from autotune.wire.recipe import HEAD_DIM

_ON_CUDA, _ON_CPU = gpt.FAMILY.defaults({}, "cuda"), gpt.FAMILY.defaults({}, "cpu")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    # fmt: off
    name: str = option(
        "--model", as_it_is, "NAME",
        f"gpt, a decoder with rotary embeddings, RMSNorm and heads of {HEAD_DIM}; hf:PATH, the"
        " folder or file of a transformers config; factory:MODULE:FUNCTION, your own module; or"
        f" a built-in config: {', '.join(kept())}, each also with -tiny.", default="gpt",
        key="model")
    task: str | None = word(
        "--task", TASKS,
        "Task of a transformers model (default: the one of its config).")
    target_len: int | None = option(
        "--target-len", parse_int, "N",
        "Tokens of the decoder per sample, for a seq2seq model (default: a quarter of seq_len).")
    image_size: tuple[ImageSize, ...] | None = option(
        "--image-size", parse_sizes, "SIZES",
        "Width and height of images, as 448x448,1344x896, for a model that sees one with each"
        " sample. The search uses the largest, finals all in equal parts (default: that of the"
        " model's config, else 448x448).")
    lora: Lora | None = option(
        "--lora", parse_lora, "LORA",
        "Train low-rank adapters instead of the model: r=16, r=16,dropout=0.05, or"
        " r=16,targets=q_proj+v_proj (default: all linear modules but the head).")
    trust_remote_code: bool = switch(
        "--trust-remote-code", "Run the Python code in a model's folder.")
    preset: str | None = word(
        "--preset", tuple(PRESETS),
        "Defaults of a known gpt: nanochat has heads of 128, 65536 tokens, normed queries and"
        " keys, logits within 15, and Muon.")
    gpt: str | None = option(
        "--gpt", partial(checked, parse=parse_gpt), "TRAITS",
        f"Traits of a gpt, e.g. width=512,mlp=swiglu: width, a multiple of head_dim (default:"
        f" {gpt.FAMILY.width_rule}); vocab_size (default: {_ON_CUDA.vocab_size}; on cpu"
        f" {_ON_CPU.vocab_size}); aspect_ratio, channels for each block; head_dim, channels of a"
        f" head (default: {HEAD_DIM}); mlp, relu2 (squared ReLU) or swiglu; qk_norm=true, queries"
        " and keys are normed; tied=true, the head is the embedding; softcap, a bound of logits.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.target_len is not None and self.target_len < 1:
            raise UsageError(f"--target-len {self.target_len}: must be at least 1")
        if self.family != "gpt":
            for flag, given in (("--gpt", self.gpt), ("--preset", self.preset)):
                if given is not None:
                    raise UsageError(f"{flag} {given}: {self.name} has its own; leave {flag} out")
        head_dim = self.traits.head_dim
        if self.width is not None and self.width % head_dim:
            raise UsageError(
                f"--gpt width={self.width}: must be a multiple of {head_dim}, the size of an"
                " attention head, e.g. --gpt"
                f" width={max(head_dim, round(self.width / head_dim) * head_dim)}"
            )

    @property
    def family(self) -> str:
        """The row of `models.FAMILIES` that the model is of. Raises `UsageError` for none."""
        return family_name(self.name)

    @property
    def said(self) -> dict[str, Any]:
        return parse_gpt(self.gpt, "--gpt") if self.gpt is not None else {}

    @property
    def width(self) -> int | None:
        return self.said.get("width")

    @property
    def vocab_size(self) -> int | None:
        of_preset = PRESETS[self.preset].vocab_size if self.preset else None
        return self.said.get("vocab_size", of_preset)

    @property
    def traits(self) -> GptTraits:
        """The traits of a gpt: the user's, else the preset's, else the defaults."""
        preset = PRESETS[self.preset].traits if self.preset else GptTraits()
        of_traits = {each.name for each in fields(GptTraits)}
        return replace(preset, **{k: v for k, v in self.said.items() if k in of_traits})

    @property
    def asked(self) -> ModelRequest:
        return ModelRequest(
            model=self.name,
            task=self.task,
            target_len=self.target_len,
            image_size=self.image_size,
            trust_remote_code=self.trust_remote_code,
            lora=self.lora,
            gpt=self.traits,
        )
