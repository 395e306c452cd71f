"""Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

from optuna.samplers import TPESampler

from autotune.outcome import Objective
from autotune.predict.predictor import Predictor
from autotune.samplers.nearest import Nearest
from autotune.space.space import Space


def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Nearest:
    base = TPESampler(seed=seed)
    return Nearest(space, base)
