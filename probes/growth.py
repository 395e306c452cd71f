"""Memory of a step at shapes that were not traced, from traces at two shapes.

Nearly every tensor's size is a constant times a form. A form is the number of samples, or 1, times
an integer power of their length. Two traces that differ in both show the form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int]
"""seq_len and micro_batch."""

_FORMS: tuple[Callable[[int], int], ...] = (
    lambda seq_len: 1,
    lambda seq_len: seq_len,
    lambda seq_len: seq_len + 1,  # labels that are padded before the shift
    lambda seq_len: seq_len - 1,
    lambda seq_len: seq_len - 4,  # the same for a decoder's labels, a quarter as many
    lambda seq_len: seq_len**2,
)
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Timeline:
    """Bytes of a step, after each change of them."""

    held: NDArray[np.number]
    early: int | None
    """Number of changes before the backward pass leaves the last block; None for all."""
    late: int | None
    """Index of the change at which the backward pass comes to the first block; None for all."""

    def peaks(self) -> tuple[int, int]:
        """The early and the late peak."""
        return round(float(self.held[: self.early].max())), round(
            float(self.held[self.late :].max())
        )

    def is_like(self, other: Timeline) -> bool:
        """Whether it may be of the same operations."""
        ends = (len(self.held), self.early, self.late)
        return ends == (len(other.held), other.early, other.late)


def grown(
    traced: Sequence[tuple[Shape, Timeline]], shapes: Sequence[Shape]
) -> Callable[[Shape], Timeline] | None:
    """Timelines at `shapes`, from two `traced` ones. None if their operations differ, or a change
    has no form, or several forms that differ at `shapes`."""
    (first, at_first), (second, at_second) = traced
    if not at_first.is_like(at_second):
        return None
    forms = [
        [of_length(n) * b**samples for n, b in (first, second, *shapes)]
        for of_length in _FORMS
        for samples in (0, 1)
    ]
    changes = np.stack([np.diff(each.held, prepend=0) for each in (at_first, at_second)], 1)
    different, places = np.unique(changes, axis=0, return_inverse=True)
    rows = [_along(int(a), int(b), forms) for a, b in different]
    known = np.array([row for row in rows if row is not None], dtype=np.int64)
    if len(known) < len(rows):
        return None
    where = {shape: i for i, shape in enumerate(shapes)}

    def at(shape: Shape) -> Timeline:
        return replace(at_first, held=np.cumsum(known[places.ravel(), where[shape]]))

    return at


def _along(size: int, other: int, forms: Sequence[Sequence[int]]) -> NDArray[np.int64] | None:
    """A change at all shapes but the first two; there it is `size` and `other`."""
    found: NDArray[np.int64] | None = None
    for by, other_by, *several in forms:
        if size * other_by != other * by:
            continue
        a_unit = Fraction(size, by)
        if abs(a_unit.numerator) * max(several) > _LARGEST:
            return None
        sizes, left = np.divmod(a_unit.numerator * np.array(several), a_unit.denominator)
        if left.any():
            continue
        if found is not None and not np.array_equal(found, sizes):
            return None
        found = sizes
    return found
