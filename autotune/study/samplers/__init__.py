"""Samplers propose the next candidate: one file each, and one row of `choices.SAMPLERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.space.choices import SAMPLERS

if TYPE_CHECKING:
    from autotune.result.folder.sampler import Sampler
    from autotune.space.outcome import Objective
    from autotune.space.space import Space
    from autotune.study.predict.predictor import Predictor


def make(
    name: str, space: Space, predictor: Predictor, objective: Objective, seed: int
) -> Sampler:
    """The sampler `name`; it draws from `seed`, where it draws."""
    found: Sampler = SAMPLERS[name].load().make(space, predictor, objective, seed)
    return found
