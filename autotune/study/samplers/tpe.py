"""Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

from optuna.samplers import TPESampler

from autotune.space.outcome import Objective
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.nearest import Nearest


# It ranks pruned trials by their steps, then by the last intermediate value: more is better. Here
# these values are step times, so it prefers the slower of two. That matters only where finished
# trials are fewer than its best tenth.
def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Nearest:
    base = TPESampler(seed=seed)
    return Nearest(space, base)
