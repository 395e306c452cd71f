"""The interface of samplers, and their adapter to Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.result.folder.ask import Ask
from autotune.space.axes import ASKED_AXES, AXES, MEMORY_AXES
from autotune.space.candidate import Candidate
from autotune.space.space import Space


class Sampler:
    """Proposes one of the candidates that an `Ask` allows."""

    round = 1
    """Number of trials of one build that a study asks for at once."""
    base: BaseSampler | None = None
    """The sampler of Optuna behind this one, which is told of trials; None if there is none."""

    def propose(self, ask: Ask, optuna_study: OptunaStudy, trial: FrozenTrial) -> int:
        """The index in the space of one of the candidates that `ask` allows."""
        raise NotImplementedError

    def why_stop(self, ask: Ask) -> str | None:
        """Why no further candidate is worth a probe; None if one may be."""
        return None


@dataclass(frozen=True)
class Asked:
    trial: Trial
    candidate: Candidate


class Adapter(BaseSampler):
    """Has a `Sampler` answer when Optuna samples."""

    def __init__(self, space: Space, sampler: Sampler) -> None:
        self._space = space
        self._sampler = sampler
        self._distributions = distributions(space)
        self._ask: Ask | None = None

    def ask(
        self, optuna_study: OptunaStudy, ask: Ask, attributes: Mapping[str, Any] | None = None
    ) -> Asked:
        """A new trial of `optuna_study` with these `attributes`; this is the study's sampler."""
        self._ask = ask
        noted = dict(attributes or {})
        if self._sampler.base is not None:  # it wants to know the trial
            trial = optuna_study.ask(self._distributions)
            for name, value in noted.items():
                trial.set_user_attr(name, value)
            return Asked(trial, candidate_of(trial.params))
        # Writing it at once, with its parameters, is the fastest.
        new = create_trial(state=TrialState.RUNNING)
        chosen = self.sample_relative(optuna_study, new, self._distributions)
        chosen = {name: chosen[name] for name in self._distributions}
        new = create_trial(
            state=TrialState.RUNNING, params=chosen, distributions=self._distributions,
            user_attrs=noted,
        )  # fmt: skip
        storage = optuna_study._storage
        trial = Trial(optuna_study, storage.create_new_trial(optuna_study._study_id, new))
        return Asked(trial, candidate_of(chosen))

    def infer_relative_search_space(
        self, study: OptunaStudy, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: OptunaStudy, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        assert self._ask is not None, "asked by `ask`"
        if self._ask.exactly is not None:
            return params(self._ask.exactly)
        return params(self._space.candidates[self._sampler.propose(self._ask, study, trial)])

    def sample_independent(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise AssertionError(f"{param_name} is always sampled with the others")

    def before_trial(self, study: OptunaStudy, trial: FrozenTrial) -> None:
        if self._sampler.base is not None:
            self._sampler.base.before_trial(study, trial)

    def after_trial(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        if self._sampler.base is not None:
            self._sampler.base.after_trial(study, trial, state, values)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The axes for Optuna: numbers that double are log ranges, others are categories."""
    found: dict[str, BaseDistribution] = {}
    for name, values in space.axes.items():
        if name in MEMORY_AXES:
            found[name] = IntDistribution(min(values), max(values), log=name != "depth")
        else:
            found[name] = CategoricalDistribution(values)
    return found


def params(candidate: Candidate) -> dict[str, Any]:
    """`candidate` as Optuna's parameters."""
    return {name: getattr(candidate, name) for name in AXES}


def candidate_of(params: dict[str, Any]) -> Candidate:
    """The candidate of a trial's parameters."""
    return Candidate(**{axis: params[axis] for axis in AXES if axis in params})


def named(params: dict[str, Any]) -> bool:
    """Whether a trial's parameters name a candidate. A trial may end before it has any."""
    return params.keys() >= AXES.keys() - set(ASKED_AXES)
