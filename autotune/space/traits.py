"""The traits of candidates: their axes, and each of a script's own axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from autotune.space.arrays import Array, Codes
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate


@dataclass(frozen=True)
class Trait:
    """One axis, and each candidate's value on it."""

    name: str
    values: Sequence[Any]

    @cached_property
    def codes(self) -> Codes:
        """A number for each distinct value, in order of appearance."""
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(v, len(numbers)) for v in self.values], dtype=np.intp)

    @cached_property
    def position(self) -> Array | None:
        """The natural logarithms of its values, around 0; None if one is not positive."""
        try:
            numbers = np.array([float(value) for value in self.values])
        except ValueError:
            return None
        if not (numbers > 0).all():
            return None
        logs = np.log(numbers)
        return np.asarray(logs - (logs.min() + logs.max()) / 2)


def traits(candidates: Sequence[Candidate]) -> list[Trait]:
    """The axes with several values."""
    found = [Trait(name, [getattr(c, name) for c in candidates]) for name in AXES if name != "own"]
    own = [dict(own_values(c)) for c in candidates]
    names = dict.fromkeys(name for each in own for name in each)
    found += [Trait(name, [each.get(name, "") for each in own]) for name in names]
    return [trait for trait in found if len(set(trait.values)) > 1]


def own_values(candidate: Candidate) -> list[tuple[str, str]]:
    """Names and values of a script's own axes, as in "tp=2;attn=sdpa"."""
    parts = (each.partition("=") for each in candidate.own.split(";"))
    return [(name, value) for name, sign, value in parts if sign]
