"""Uniform draws: a baseline that assumes nothing."""

from __future__ import annotations

from optuna.samplers import RandomSampler

from autotune.space.outcome import Objective
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.nearest import Nearest


def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Nearest:
    base = RandomSampler(seed=seed)
    return Nearest(space, base)
