"""The axes of the space: the fields of a candidate, and groups of them.

A row is an option of the command line, a parameter of Optuna's trials, a placeholder of a script's
command, a field of best.json, and a column of trials.csv and of recorded grids.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches

from autotune.wire.settings import Axis, Depth, Level, Settings, row, rows


@dataclass(frozen=True, kw_only=True)
class Shape(Depth):
    """The axes that memory grows along."""

    seq_len: int = field(metadata=row(Axis(
        label="seq", level=Level.PROBE, always=True, metavar="INTS",
        help="Tokens per sample, e.g. 128,256")))  # fmt: skip
    micro_batch: int = field(metadata=row(Axis(
        label="micro", level=Level.PROBE, always=True, metavar="INTS",
        help="Samples per rank and micro-step, e.g. 1:64 or 8,16")))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The axes of samples of different lengths: how a batch is made of them."""

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


AXES = rows(Shape) | rows(Settings) | rows(Batching)
"""By name, in the order in which they are shown."""
MEMORY_AXES = tuple(rows(Shape))
"""Memory grows along these, whatever the others are."""
PADDING_AXES = ("pad_to_multiple", "buckets")
"""The longest batch is the same, whatever these are."""
OTHER_AXES = tuple(rows(Settings) | rows(Batching))
ASKED_AXES = tuple(name for name, axis in AXES.items() if not axis.always)
"""Axes that a space has only if the user asks for more than the plain value."""
SCRIPT_AXES = tuple(name for name, axis in AXES.items() if axis.of_script)
"""Axes that only a user's script has."""
DEGREES = ("tp", "pp", "cp", "ep")
"""Axes of numbers, by which the ranks of a script share a model, its sequences or its experts."""
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
"""What scripts and other tools call an axis."""
_SHORT = 3
"""A name of so few letters is like many others."""
_LIKE = 0.7
"""The least likeness of a name that was misspelt."""


def meant(name: str, known: Collection[str]) -> str | None:
    """The one of the `known` names that `name` stands for: the axis that others call so, or else
    the name that is most like it."""
    plain = name.lower().replace("-", "_")
    for axis, names in _OTHERS_NAMES.items():
        if plain in names and axis in known:
            return axis
    longer = [each for each in known if len(each) > _SHORT]
    near = get_close_matches(plain, longer, 1, _LIKE) if len(plain) > _SHORT else []
    return near[0] if near else None
