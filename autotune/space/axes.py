"""The axes of the space: one row each, with what a change of it needs.

A row is a field of `Candidate`, an option of the command line, a parameter of Optuna's trials and
a column of trials.csv and of recorded grids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """What has to be new for another value."""

    PROBE = "probe"
    """Nothing: it changes in place."""
    BUILD = "build"
    """Model and engine."""
    LAUNCH = "launch"
    """The processes, too: it is in their environment."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One of them."""

    name: str
    level: Level
    label: str
    """Above a column."""
    words: tuple[str, ...] = ()
    """Known values, in the order in which they are shown; empty for numbers."""
    pattern: str | None = None
    """What else is a value, as a regular expression."""
    example: str = ""
    """One of those."""
    plain: Any = None
    """What holds where nobody says anything."""
    always: bool = False
    """Whether every space has it, asked for or not."""
    quiet: bool = False
    """Whether it is shown only where it makes a difference."""
    help: str = ""
    """What `--help` says of its option; of numbers without their default, which is a family's."""
    metavar: str = "NAMES"

    @property
    def option(self) -> str:
        """The field of `Options` that sets its values."""
        return {"zero_stage": "zero", "own": "axis"}.get(self.name, self.name)

    @property
    def flag(self) -> str:
        return "--" + self.option.replace("_", "-")

    @property
    def known(self) -> tuple[str, ...]:
        """Its words, and what others look like."""
        return self.words if self.pattern is None else (*self.words, self.example)

    def takes(self, word: str) -> bool:
        """Whether `word` is one of its values."""
        return word in self.words or (
            self.pattern is not None and re.fullmatch(self.pattern, word) is not None
        )

    def order(self, value: Any) -> tuple[int, Any]:
        """Sorts values as they are shown: words as they are known, numbers ascending."""
        if isinstance(value, str):
            return (self.words.index(value) if value in self.words else len(self.words), value)
        return (0, value)


ZERO_STAGES = (0, 1, 2, 3)
EVERY_NTH = r"1/[2-9]|1/[1-9][0-9]"
"""Checkpointing of one block in so many."""
SETTINGS = r"[a-z_]+:[A-Za-z0-9_.\[\]-]+(\+[a-z_]+:[A-Za-z0-9_.\[\]-]+)*"
"""Settings of torch's allocator, joined by + where PYTORCH_ALLOC_CONF has commas."""

OWN_VALUES = r"[a-z_]\w*=[^;,]*(;[a-z_]\w*=[^;,]*)*"
"""One value on each of a script's own axes."""

_ALLOC_CONF = {"default": "", "expandable": "expandable_segments:True"}


def alloc_conf(allocator: str) -> str:
    """What PYTORCH_ALLOC_CONF holds for that value of the axis; empty where nothing is said."""
    return _ALLOC_CONF.get(allocator, allocator.replace("+", ","))


def alloc_variables(allocator: str) -> dict[str, str]:
    """Variables of a process that is to have that value; none where nothing is said.

    Of two names torch takes the older one first, which may be set already
    (c10/cuda/CUDAAllocatorConfig.h, torch 2.11).
    """
    conf = alloc_conf(allocator)
    return {"PYTORCH_ALLOC_CONF": conf, "PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}


_ROWS = (
    Axis(name="depth", level=Level.BUILD, label="depth", always=True, metavar="INTS",
         help="Numbers of blocks, e.g. 2,4,6 or 2:6:2"),
    Axis(name="seq_len", level=Level.PROBE, label="seq", always=True, metavar="INTS",
         help="Tokens per sample, e.g. 128,256"),
    Axis(name="micro_batch", level=Level.PROBE, label="micro", always=True, metavar="INTS",
         help="Samples per rank and micro-step, e.g. 1:64 or 8,16"),
    Axis(name="zero_stage", level=Level.BUILD, label="zero", plain=0, always=True, quiet=True,
         metavar="INTS",
         help=(
             "ZeRO stages, e.g. 0,2,3; for fsdp 3 gives parameters back after forward and 2"
             " keeps them (default: the engine's stages on several ranks; 0 on one)."
         )),
    Axis(name="offload", level=Level.BUILD, label="offload",
         words=("none", "optimizer", "all"), plain="none", always=True, quiet=True,
         help=(
             "What moves to host memory: none, optimizer, all (optimizer and parameters)"
             " (default: none; all three where stage 0 cannot hold the deepest model)."
         )),
    Axis(name="checkpointing", level=Level.BUILD, label="ckpt",
         words=("none", "full", "selective", "host"), pattern=EVERY_NTH, example="1/2",
         plain="none", always=True,
         help=(
             "Activation checkpointing: none; full; 1/2, 1/3 and so on, of every second or"
             " third block; selective, which keeps what matrix products and attention computed;"
             " host, which keeps blocks' inputs in host memory (default: none,full)."
         )),
    Axis(name="attention", level=Level.BUILD, label="attention",
         words=("auto", "sdpa", "eager", "flash_attention_2", "flex_attention"), plain="auto",
         quiet=True,
         help=(
             "How attention is computed: auto, sdpa, eager, flash_attention_2 or"
             " flex_attention, as far as model and machine have it (default: auto, the model's"
             " own)."
         )),
    Axis(name="compile", level=Level.BUILD, label="compile", words=("off", "on"), plain="off",
         quiet=True,
         help="Whether blocks run through torch.compile: off or on (default: off)."),
    Axis(name="loss", level=Level.BUILD, label="loss", words=("whole", "chunked"), plain="whole",
         quiet=True,
         help=(
             "Cross-entropy of the whole, or chunked: the logits are never there at once"
             " (default: whole)."
         )),
    Axis(name="optimizer", level=Level.BUILD, label="optimizer",
         words=("adamw", "muon", "adamw8bit"), plain="adamw", quiet=True,
         help=(
             "adamw; muon for the matrices and AdamW for the rest; adamw8bit, whose state has"
             " 8 bits (needs torchao) (default: adamw)."
         )),
    Axis(name="param_dtype", level=Level.BUILD, label="params", words=("auto", "fp32", "bf16"),
         plain="auto", quiet=True,
         help=(
             "What weights are stored as, where products are not fp32: auto, fp32, or bf16"
             " with no fp32 copy (default: auto, as the engine does it)."
         )),
    Axis(name="allocator", level=Level.LAUNCH, label="allocator",
         words=("default", "expandable"), pattern=SETTINGS,
         example="max_split_size_mb:128", plain="default", quiet=True,
         help=(
             "torch's allocator of CUDA memory: default, expandable (segments), or settings of"
             " PYTORCH_ALLOC_CONF joined by +, e.g. max_split_size_mb:128 (default: default)."
         )),
    Axis(name="data_workers", level=Level.LAUNCH, label="workers", words=("own",),
         pattern=r"\d{1,4}", example="4", plain="own", quiet=True, metavar="INTS",
         help="Processes that load a script's data, where {data_workers} is, e.g. 0,2,4."),
    Axis(name="pin_memory", level=Level.LAUNCH, label="pinned", words=("own", "true", "false"),
         plain="own", quiet=True,
         help="Whether a script's loader pins memory, where {pin_memory} is: true, false."),
    Axis(name="prefetch", level=Level.LAUNCH, label="prefetch", words=("own",),
         pattern=r"\d{1,4}", example="2", plain="own", quiet=True, metavar="INTS",
         help="Batches that each of a script's loader processes prepares, where {prefetch} is."),
    Axis(name="own", level=Level.LAUNCH, label="own", words=("none",), pattern=OWN_VALUES,
         example="attn=sdpa", plain="none", quiet=True),
)  # fmt: skip
AXES: dict[str, Axis] = {row.name: row for row in _ROWS}
"""By name, in the order in which they are shown."""
MEMORY_AXES = ("depth", "seq_len", "micro_batch")
"""Memory grows along these, whatever the others are."""
OTHER_AXES = tuple(name for name in AXES if name not in MEMORY_AXES)
ASKED_AXES = tuple(name for name, row in AXES.items() if not row.always)
"""Those that a space has only where the user asks for more than what is plain."""
SCRIPT_AXES = ("data_workers", "pin_memory", "prefetch", "own")
"""Those that only a script of the user's own has."""
