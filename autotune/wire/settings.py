"""The axes of a build: each is a field, with its row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """The parts that have to be new for another value."""

    PROBE = "probe"
    """Nothing: it changes in place."""
    BUILD = "build"
    """Model and engine."""
    LAUNCH = "launch"
    """The processes, too, since their environment has it."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One setting that may be searched, as its field's metadata describe it."""

    label: str
    """The title of its column."""
    level: Level = Level.BUILD
    words: tuple[str, ...] = ()
    """Known values, in the order in which they are shown; empty for numbers."""
    pattern: str | None = None
    """A regular expression for further values."""
    example: str = ""
    """A value that matches `pattern`."""
    always: bool = False
    """Whether every space has it, requested or not."""
    quiet: bool = False
    """Whether it is shown only if it makes a difference."""
    of_engines: bool = False
    """Whether only those engines have it that name it in `EngineFacts.axes`."""
    of_script: bool = False
    help: str = ""
    """The help of its option, without the default of numbers, which the family has."""
    metavar: str = "NAMES"
    name: str = ""
    plain: Any = None
    """The default of its field; None if every candidate must have a value."""

    @property
    def option(self) -> str:
        """The field of `Options` that sets its values."""
        return {"zero_stage": "zero", "own": "axis"}.get(self.name, self.name)

    @property
    def flag(self) -> str:
        return "--" + self.option.replace("_", "-")

    @property
    def known(self) -> tuple[str, ...]:
        """Its words, and an example of further values."""
        return self.words if self.pattern is None else (*self.words, self.example)

    @property
    def least(self) -> int:
        """The smallest of its numbers."""
        return self.plain if isinstance(self.plain, int) else 1

    def takes(self, word: str) -> bool:
        return word in self.words or (
            self.pattern is not None and re.fullmatch(self.pattern, word) is not None
        )

    def order(self, value: Any) -> tuple[int, Any]:
        """Sorts values as they are shown: words as they are known, numbers ascending."""
        if isinstance(value, str):
            return (self.words.index(value) if value in self.words else len(self.words), value)
        return (0, value)


def row(axis: Axis) -> Mapping[str, Axis]:
    """The metadata of an axis' field."""
    return {"axis": axis}


def rows(cls: type[Any]) -> dict[str, Axis]:
    """The axes of the dataclass `cls` by name, in the order of its fields."""
    return {
        each.name: replace(
            each.metadata["axis"],
            name=each.name,
            plain=None if each.default is MISSING else each.default,
        )
        for each in fields(cls)
    }


_COUNT = r"\d{1,4}"
_ALLOC_CONF = {"default": "", "expandable": "expandable_segments:True"}


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Depth:
    """The one axis of a build along which memory grows."""

    depth: int = field(metadata=row(Axis(
        label="depth", always=True, metavar="INTS",
        help="Numbers of blocks, e.g. 2,4,6 or 2:6:2")))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All other axes of a build."""

    zero_stage: int = field(default=0, metadata=row(Axis(
        label="zero", always=True, quiet=True, metavar="INTS",
        help=(
            "ZeRO stages, e.g. 0,2,3. For fsdp, 3 frees parameters after the forward pass and 2"
            " keeps them (default: the engine's stages on several ranks; 0 on one)."
        ))))
    offload: str = field(default="none", metadata=row(Axis(
        label="offload", words=("none", "optimizer", "all"), always=True, quiet=True,
        help=(
            "State in host memory: none, optimizer, or all (optimizer and parameters) (default:"
            " none; all three if stage 0 cannot hold the deepest model)."
        ))))
    checkpointing: str = field(default="none", metadata=row(Axis(
        label="ckpt", words=("none", "full", "selective", "host"),
        pattern=r"1/[2-9]|1/[1-9][0-9]", example="1/2", always=True,
        help=(
            "Activation checkpointing: none; full; 1/2 or 1/3 (every second or third block);"
            " selective (keep the results of matrix products and attention); host (keep the"
            " inputs of blocks in host memory). A factory that reads spec.checkpointing applies"
            " it itself; else autotune applies it to the blocks (default: none,full)."
        ))))
    attention: str = field(default="auto", metadata=row(Axis(
        label="attention", quiet=True,
        words=("auto", "sdpa", "eager", "flash_attention_2", "flex_attention"),
        help=(
            "Attention implementation: auto, sdpa, eager, flash_attention_2 or flex_attention,"
            " if model and machine support it (default: auto, the model's own)."
        ))))
    compile: str = field(default="off", metadata=row(Axis(
        label="compile", words=("off", "on"), quiet=True,
        help="torch.compile for the blocks: off or on (default: off).")))
    dynamic: str = field(default="off", metadata=row(Axis(
        label="dynamic", words=("off", "on"), quiet=True,
        help=(
            "Dynamic shapes for --compile on: off, code for each shape, or on, the same code for"
            " many (default: off)."
        ))))
    loss: str = field(default="whole", metadata=row(Axis(
        label="loss", words=("whole", "chunked"), quiet=True,
        help=(
            "Cross-entropy: whole, or chunked, which never holds all logits at once (default:"
            " whole)."
        ))))
    optimizer: str = field(default="adamw", metadata=row(Axis(
        label="optimizer", words=("adamw", "muon", "adamw8bit"), quiet=True,
        help=(
            "adamw; muon for the matrices and AdamW for the rest; adamw8bit, whose state has"
            " 8 bits (needs torchao) (default: adamw)."
        ))))
    param_dtype: str = field(default="auto", metadata=row(Axis(
        label="params", words=("auto", "fp32", "bf16"), quiet=True,
        help=(
            "Type of the stored weights if matrix products are not fp32: auto, fp32, or bf16"
            " without an fp32 copy (default: auto, the engine's own)."
        ))))
    base: str = field(default="auto", metadata=row(Axis(
        label="base", words=("auto", "bf16", "nf4", "int8"), quiet=True,
        help=(
            "Type of the weights that --lora freezes: auto, as --param-dtype says; bf16; nf4"
            " (QLoRA) or int8, of bitsandbytes, with the rest in the type of the products"
            " (default: auto)."
        ))))
    float8: str = field(default="off", metadata=row(Axis(
        label="fp8", words=("off", "tensorwise", "rowwise", "rowwise_with_gw_hp"), quiet=True,
        of_engines=True,
        help=(
            "Products of the blocks' linear layers in fp8, by a recipe of torchao: off,"
            " tensorwise, rowwise or rowwise_with_gw_hp (default: off)."
        ))))
    reduce_dtype: str = field(default="auto", metadata=row(Axis(
        label="reduce", words=("auto", "fp32", "bf16"), quiet=True, of_engines=True,
        help=(
            "Type of gradients between ranks: auto, fp32 or bf16 (default: auto, as the engine"
            " does it)."
        ))))
    allocator: str = field(default="default", metadata=row(Axis(
        label="allocator", level=Level.LAUNCH, words=("default", "expandable"),
        pattern=r"[a-z_]+:[A-Za-z0-9_.\[\]-]+(\+[a-z_]+:[A-Za-z0-9_.\[\]-]+)*",
        example="max_split_size_mb:128", quiet=True,
        help=(
            "torch's allocator of CUDA memory: default, expandable (segments), or settings of"
            " PYTORCH_ALLOC_CONF joined by +, e.g. max_split_size_mb:128 (default: default)."
        ))))
    data_workers: str = field(default="own", metadata=row(Axis(
        label="workers", level=Level.LAUNCH, words=("own",), pattern=_COUNT, example="4",
        quiet=True, of_script=True, metavar="INTS",
        help="Loader processes of a script, e.g. 0,2,4. Fills in {data_workers}.")))
    pin_memory: str = field(default="own", metadata=row(Axis(
        label="pinned", level=Level.LAUNCH, words=("own", "true", "false"),
        quiet=True, of_script=True,
        help="Pinned memory in a script's loader: true or false. Fills in {pin_memory}.")))
    prefetch: str = field(default="own", metadata=row(Axis(
        label="prefetch", level=Level.LAUNCH, words=("own",), pattern=_COUNT, example="2",
        quiet=True, of_script=True, metavar="INTS",
        help="Batches that each loader process of a script prepares. Fills in {prefetch}.")))
    tp: int = field(default=1, metadata=row(Axis(
        label="tp", level=Level.LAUNCH, quiet=True, of_script=True, metavar="INTS", example="1,2",
        help="Degrees of tensor parallelism of a script, e.g. 1,2,4. Fills in {tp}, and {dp}.")))
    pp: int = field(default=1, metadata=row(Axis(
        label="pp", level=Level.LAUNCH, quiet=True, of_script=True, metavar="INTS", example="1,2",
        help="Degrees of pipeline parallelism of a script. Fills in {pp}, and {dp}.")))
    cp: int = field(default=1, metadata=row(Axis(
        label="cp", level=Level.LAUNCH, quiet=True, of_script=True, metavar="INTS", example="1,2",
        help="Degrees of context parallelism of a script. Fills in {cp}, and {dp}.")))
    ep: int = field(default=1, metadata=row(Axis(
        label="ep", level=Level.LAUNCH, quiet=True, of_script=True, metavar="INTS", example="1,2",
        help="Degrees of expert parallelism of a script. Fills in {ep}.")))
    dp_shard: str = field(default="auto", metadata=row(Axis(
        label="dp_shard", level=Level.LAUNCH, words=("auto",), pattern=r"[1-9]\d{0,3}",
        example="2", quiet=True, of_script=True, metavar="INTS",
        help=(
            "Replicas of a script that share one copy of the weights: auto, all of them, or"
            " numbers. Fills in {dp_shard}, and {dp_replicate} (default: auto)."
        ))))
    own: str = field(default="none", metadata=row(Axis(
        label="axis", level=Level.LAUNCH, words=("none",),
        pattern=r"[a-z_]\w*=[^;,]*(;[a-z_]\w*=[^;,]*)*", example="attn=sdpa",
        quiet=True, of_script=True)))
    # fmt: on

    @property
    def ranks_a_replica(self) -> int:
        """The requested number of ranks that share one replica's data."""
        return self.tp * self.pp * self.cp

    @property
    def compiles(self) -> bool:
        """Whether torch.compile is used for any part."""
        return self.compile == "on" or self.optimizer == "adamw8bit"

    @property
    def quantized(self) -> bool:
        """Whether frozen weights have fewer than 16 bits."""
        return self.base in ("nf4", "int8")

    def stored_in(self, dtype: str) -> str:
        """The type of weights that are not quantized, if products are of `dtype` and the engine
        does not choose: fp32, but beside a base of another type bf16 where products are."""
        if self.param_dtype != "auto":
            return self.param_dtype
        return "bf16" if self.base != "auto" and dtype == "bf16" else "fp32"

    @property
    def alloc_conf(self) -> str:
        """Settings of torch's CUDA allocator; empty for its own."""
        return _ALLOC_CONF.get(self.allocator, self.allocator.replace("+", ","))

    @property
    def alloc_variables(self) -> dict[str, str]:
        """Those settings as variables of a process; none for torch's own. torch prefers the older
        of two names, which may be set already (c10/cuda/CUDAAllocatorConfig.h, torch 2.11)."""
        conf = self.alloc_conf
        return {"PYTORCH_ALLOC_CONF": conf, "PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
