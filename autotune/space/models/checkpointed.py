"""Memory and FLOPs under activation checkpointing, by arithmetic."""

from __future__ import annotations

SELECTED = 0.5
"""The share of a block's activations that come from matrix products and attention. They are 18 of
34 numbers a token and channel (arXiv 2205.05198, section 4.1; flash kernels for attention)."""


def kept_blocks(checkpointing: str, depth: int, block_floats: float) -> float:
    """The number of blocks whose activations are held at the peak, of `depth` blocks.

    A checkpointed block keeps its input, one of `block_floats` a token. One at a time keeps all.
    """
    match checkpointing:
        case "none":
            return depth
        case "full":
            return 1 + depth / block_floats
        case "selective":
            return 1 + SELECTED * depth
        case "host":
            return 1
    whole = depth - -(-depth // checkpointed_every(checkpointing))
    return 1 + whole + (depth - whole) / block_floats


def recomputed_share(checkpointing: str, depth: int) -> float:
    """The share of the blocks' forward FLOPs that the backward pass repeats."""
    match checkpointing:
        case "none" | "selective":  # selective repeats no matrix product
            return 0.0
        case "full" | "host":
            return 1.0
    return -(-depth // checkpointed_every(checkpointing)) / depth


def checkpointed_every(checkpointing: str) -> int:
    """The number of blocks for each checkpointed one: 2 for "1/2"."""
    return int(checkpointing.partition("/")[2] or 1)
