"""What is told of shapes between two traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from probes.growth import Shape, Timeline, grown

SHAPES = [(1024, 2), (1024, 128), (1152, 3), (2048, 128)]


def timeline(of: Callable[[int, int], list[int]], shape: Shape) -> Timeline:
    return Timeline(np.cumsum(of(*shape)), early=2, late=2)


def several(seq_len: int, micro_batch: int) -> list[int]:
    """Weights, a mask, hidden states, labels, scores, and those that go again; a quarter of
    each length with its first one left out."""
    tokens = seq_len * micro_batch
    scores = 4 * tokens * seq_len
    padded = 8 * micro_batch * (seq_len + 1)
    next_ones = 8 * micro_batch * (seq_len // 4 - 1)
    return [7000, seq_len**2, 6 * tokens, padded, scores, -padded, -scores, tokens // 4, next_ones]


def test_two_shapes_tell_every_other_one_to_the_byte() -> None:
    ends = [(2048, 128), (1024, 2)]
    known = grown([(end, timeline(several, end)) for end in ends], SHAPES)
    assert known is not None
    for shape in SHAPES:
        assert known(shape).held.tolist() == timeline(several, shape).held.tolist()


@pytest.mark.parametrize(
    "of",
    [
        lambda seq_len, micro_batch: [-(-seq_len // 1000) * 64],
        lambda seq_len, micro_batch: [seq_len * micro_batch + 512],
        lambda seq_len, micro_batch: [micro_batch] * (seq_len // 1024),
    ],
    ids=["padded", "of two forms", "of other operations"],
)
def test_what_has_no_form_is_not_told(of: Callable[[int, int], list[int]]) -> None:
    ends = [(2048, 128), (1024, 2)]
    assert grown([(end, timeline(of, end)) for end in ends], SHAPES) is None


def test_shapes_that_grow_alike_on_both_axes_tell_no_form() -> None:
    ends = [(2048, 4), (1024, 2)]
    assert grown([(end, timeline(several, end)) for end in ends], [(1024, 4)]) is None
