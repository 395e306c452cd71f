"""Optuna's Gaussian process. It imports torch when it is used."""

from __future__ import annotations

from optuna.samplers import GPSampler

from autotune.space.outcome import Objective
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor
from autotune.study.samplers.nearest import Nearest


def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> Nearest:
    base = GPSampler(seed=seed, deterministic_objective=False, warn_independent_sampling=False)
    return Nearest(space, base)
