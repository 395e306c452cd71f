"""The space that is searched where nothing else is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """Values of the axes that a model has, and of its vocabulary."""

    depth: tuple[int, ...]
    seq_len: tuple[int, ...]
    micro_batch: tuple[int, ...]
    vocab_size: int
