"""Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

from optuna.samplers import TPESampler

from autotune.space.outcome import Objective
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.nearest import Nearest


# Of what was stopped early it takes the longest for the best, and of two that ran as many steps
# the one whose last step took longer: intermediate values are step times here, and more is better
# in the study. That decides only which of them fill up the best tenth, where fewer trials than
# that were measured to the end.
def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Nearest:
    base = TPESampler(seed=seed)
    return Nearest(space, base)
