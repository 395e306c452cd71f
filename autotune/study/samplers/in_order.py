"""Every candidate, build by build, ascending in tokens: the sampler `grid`."""

from __future__ import annotations

import numpy as np
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial

from autotune.result.folder.ask import Ask
from autotune.result.folder.sampler import Sampler
from autotune.space.outcome import Objective
from autotune.space.space import Space
from autotune.study.predict.predictor import Predictor


class InOrder(Sampler):
    """Ignores all measurements."""

    def __init__(self, space: Space) -> None:
        ordered = sorted(
            enumerate(space.candidates), key=lambda item: (item[1].build, item[1].tokens)
        )
        self._order = np.argsort([place for place, _ in ordered])

    def propose(self, ask: Ask, optuna_study: OptunaStudy, trial: FrozenTrial) -> int:
        return int(ask.allowed[self._order[ask.allowed].argmin()])


def make(space: Space, predictor: Predictor, objective: Objective, seed: int) -> InOrder:
    return InOrder(space)
