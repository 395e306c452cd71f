"""The model that is tuned."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autotune.errors import UsageError
from autotune.space.models import family_name, gpt
from autotune.space.models.defaults import Asked, GptTraits, Lora, Mlp, parse_lora
from autotune.space.models.gpt import PRESETS
from autotune.space.models.hf import TASKS, kept
from autotune.space.options.flag import as_it_is, option, switch, word
from autotune.units import parse_int
from autotune.wire.recipe import HEAD_DIM

_ON_CUDA, _ON_CPU = gpt.FAMILY.defaults({}, "cuda"), gpt.FAMILY.defaults({}, "cpu")
TRAITS = tuple(each.name for each in fields(GptTraits))
"""Names of options that are traits of a gpt."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    # fmt: off
    name: str = option(
        "--model", as_it_is, "NAME",
        f"gpt, a decoder with rotary embeddings, RMSNorm and heads of {HEAD_DIM}; hf:PATH, the"
        " folder or file of a config of transformers; factory:MODULE:FUNCTION, your own; or one"
        f" that is kept here: {', '.join(kept())}, each also with -tiny.", default="gpt",
        key="model")
    task: str | None = word(
        "--task", TASKS,
        "What a model of transformers is trained for (default: what its config says).")
    target_len: int | None = option(
        "--target-len", parse_int, "N",
        "Tokens that a seq2seq model's decoder says of a sample (default: a quarter of its"
        " seq_len).")
    lora: Lora | None = option(
        "--lora", parse_lora, "LORA",
        "Train low-rank adapters instead of the model: r=16, or r=16,targets=q_proj+v_proj"
        " (default: all linear modules but the head).")
    trust_remote_code: bool = switch(
        "--trust-remote-code", "Run the code that a model's folder brings.")
    preset: str | None = word(
        "--preset", tuple(PRESETS),
        "Traits of a known gpt, where nothing else is said: nanochat has heads of 128, 65536"
        " tokens, normed queries and keys, logits within 15, and Muon.")
    aspect_ratio: int | None = option(
        "--aspect-ratio", parse_int, "N",
        f"Channels of a gpt for each block (default: {GptTraits().aspect_ratio}).")
    head_dim: int | None = option(
        "--head-dim", parse_int, "N",
        f"Channels of a gpt's attention heads (default: {GptTraits().head_dim}).")
    mlp: Mlp | None = word(
        "--mlp", Mlp, f"A gpt's MLP: squared ReLU, or SwiGLU (default: {GptTraits().mlp}).")
    qk_norm: bool = switch("--qk-norm", "Norm a gpt's queries and keys.")
    tied: bool = switch("--tied", "Make a gpt's head of its embedding.")
    softcap: int | None = option(
        "--softcap", parse_int, "N", "Keep a gpt's logits within this of 0.")
    width: int | None = option(
        "--width", parse_int, "N",
        f"Channels of a gpt, a multiple of {HEAD_DIM} (default: {gpt.FAMILY.width_rule}).")
    vocab_size: int | None = option(
        "--vocab-size", parse_int, "N",
        f"Tokens in a gpt's vocabulary (default: {_ON_CUDA.vocab_size}; on cpu"
        f" {_ON_CPU.vocab_size}).", also="--vocab")
    # fmt: on

    def __post_init__(self) -> None:
        if self.target_len is not None and self.target_len < 1:
            raise UsageError(f"--target-len {self.target_len}: must be at least 1")
        if self.family != "gpt":
            for name in ("width", "vocab_size", "preset", *TRAITS):
                given = getattr(self, name)
                if given is not None and given is not False:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag} {given}: {self.name} has its own; leave {flag} out")
        for flag, value in (("--width", self.width), ("--vocab-size", self.vocab_size)):
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        self._check_traits()

    def _check_traits(self) -> None:
        """That what is said of a gpt goes together."""
        if self.width is not None and self.aspect_ratio is not None:
            raise UsageError(f"--aspect-ratio {self.aspect_ratio}: --width says it already")
        traits = self.traits
        for flag, value in [
            ("--aspect-ratio", traits.aspect_ratio), ("--head-dim", traits.head_dim),
            ("--softcap", traits.softcap),
        ]:  # fmt: skip
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: must be at least 1")
        if traits.head_dim % 2:
            raise UsageError(f"--head-dim {traits.head_dim}: must be even, for rotary positions")
        if self.width is not None:
            gpt.FAMILY.check_width(self.width, traits.head_dim)

    @property
    def family(self) -> str:
        """The row of `models.FAMILIES` that the model is of. Raises `UsageError` for none."""
        return family_name(self.name)

    @property
    def traits(self) -> GptTraits:
        """A gpt's: those that were given, else the preset's, else the usual ones."""
        given = {name: getattr(self, name) for name in TRAITS}
        said = {
            name: value
            for name, value in given.items()
            if value is not None and value is not False
        }
        preset = PRESETS[self.preset].traits if self.preset else GptTraits()
        return replace(preset, **said)

    @property
    def asked(self) -> Asked:
        """What is said of the model, for its family."""
        return Asked(
            model=self.name,
            task=self.task,
            target_len=self.target_len,
            trust_remote_code=self.trust_remote_code,
            lora=self.lora,
            gpt=self.traits,
        )
