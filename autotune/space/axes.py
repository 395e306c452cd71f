"""The axes of the space: the fields of a candidate, and groups of them.

A row is an option of the command line, and a parameter of Optuna's trials. It is a placeholder of
commands, a field of best.json, and a column of trials.csv and of recorded grids.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches

from autotune.wire.settings import Axis, Depth, Level, Settings, row, rows

SAME, AUTO = "same", "auto"
"""Words for micro-batches by rank: alike; and vectors that autotune chooses."""


@dataclass(frozen=True, kw_only=True)
class Shape(Depth):
    """The axes along which memory grows."""

    seq_len: int = field(metadata=row(Axis(
        label="seq", level=Level.PROBE, always=True, metavar="INTS",
        help="Tokens per sample, e.g. 128,256")))  # fmt: skip
    micro_batch: int = field(metadata=row(Axis(
        label="micro", level=Level.PROBE, always=True, metavar="INTS",
        help="Samples per rank and micro-step, e.g. 1:64 or 8,16")))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The axes of batches from samples of different lengths."""

    pad_to_multiple: int = field(default=1, metadata=row(Axis(
        label="pad", level=Level.PROBE, quiet=True, metavar="INTS", example="8",
        help=(
            "Pad batches of a --length-mix to a multiple of so many tokens, e.g. 1,8,64"
            " (default: 1)."
        ))))  # fmt: skip
    buckets: int = field(default=0, metadata=row(Axis(
        label="buckets", level=Level.PROBE, quiet=True, metavar="INTS", example="4",
        help=(
            "Pad batches of a --length-mix to the next of so many lengths, which autotune chooses"
            " by the mix, e.g. 0,4,8 (default: 0, pad to the longest sample)."
        ))))  # fmt: skip
    pack: str = field(default="off", metadata=row(Axis(
        label="pack", level=Level.PROBE, words=("off", "on"), quiet=True,
        help=(
            "Pack several samples of a --length-mix into each row of --seq-len tokens, if the"
            " model keeps them apart: off or on (default: off)."
        ))))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ByRank(Batching):
    """The axes of batches that need not be alike, in samples or between ranks."""

    micro_batch_per_rank: str = field(default=SAME, metadata=row(Axis(
        label="per rank", level=Level.PROBE, words=(SAME,),
        pattern=r"auto|[1-9]\d{0,8}(\+[1-9]\d{0,8})+", example="2+4", quiet=True,
        metavar="VECTORS",
        help=(
            "Samples of each rank and micro-step, for unlike cards, instead of --micro-batch:"
            " 2+4,3+5 are two vectors, auto is vectors by the cards' memory and speed."
            " Gradients are weighed by samples (default: same)."
        ))))  # fmt: skip


AXES = rows(Shape) | rows(Settings) | rows(ByRank)
"""By name, in the order in which they are shown."""
MEMORY_AXES = tuple(rows(Shape))
"""Axes along which memory always grows."""
PADDING_AXES = ("pad_to_multiple", "buckets")
"""Axes that do not change the longest batch."""
OTHER_AXES = tuple(rows(Settings) | rows(ByRank))
ASKED_AXES = tuple(name for name, axis in AXES.items() if not axis.always)
"""Axes that a space has only if the user asks for more than the plain value."""
SCRIPT_AXES = tuple(name for name, axis in AXES.items() if axis.of_script)
"""Axes that only a user's script has."""
DEGREES = ("tp", "pp", "cp", "ep")
"""Axes of numbers: degrees by which ranks of a script share model, sequences or experts."""
ZERO_STAGES = (0, 1, 2, 3)

_OTHERS_NAMES = {
    "micro_batch": (
        "b", "bs", "mbs", "batch", "batch_size", "batchsize", "microbatch", "micro_batch_size",
        "train_batch_size", "device_batch_size", "per_device_batch_size",
        "per_device_train_batch_size", "train_micro_batch_size_per_gpu",
    ),
    "seq_len": (
        "ctx", "context", "context_length", "seq", "seqlen", "seq_length", "sequence_length",
        "length", "max_len", "max_length", "max_seq_len", "max_seq_length", "block_size",
    ),
}  # fmt: skip
"""Names of axes in scripts and other tools."""
_SHORT = 3
"""Names of at most so many letters are too much alike."""
_LIKE = 0.7
"""The least similarity of a misspelt name."""


def meant(name: str, known: Collection[str]) -> str | None:
    """The `known` name that `name` stands for: another name of it, else the most similar."""
    plain = name.lower().replace("-", "_")
    for axis, names in _OTHERS_NAMES.items():
        if plain in names and axis in known:
            return axis
    longer = [each for each in known if len(each) > _SHORT]
    near = get_close_matches(plain, longer, 1, _LIKE) if len(plain) > _SHORT else []
    return near[0] if near else None
