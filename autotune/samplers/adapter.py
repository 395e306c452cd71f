"""Who proposes the next candidate: Optuna's samplers, kept inside the space.

Optuna's samplers know ranges, not which points of them are valid or already measured, and a probe
is too dear to repeat. `SpaceSampler` moves what one of them proposes to the nearest candidate that
is still open, within one build where the study asks for that. `FrontierSampler`, the default,
needs no other: it proposes by what it believes of every candidate (frontier.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.options import Objective, Options
from autotune.outcome import Outcome, outcome_from
from autotune.predict.belief import Array, Codes
from autotune.predict.memory import device_memory
from autotune.samplers.frontier import ENOUGH, Costs, Frontier
from autotune.space.space import AXES, Build, Candidate, Space

_NUMERIC = ("depth", "seq_len", "micro_batch")


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The axes as Optuna sees them: numbers on a log scale where they double, else categories.

    An axis such as 1,2,4,8 enters as the range 1 to 8, so that a sampler knows its order.
    """
    found: dict[str, BaseDistribution] = {}
    for name, values in space.axes.items():
        if name in _NUMERIC:
            found[name] = IntDistribution(min(values), max(values), log=name != "depth")
        else:
            found[name] = CategoricalDistribution(values)
    return found


class SpaceSampler(BaseSampler):
    """A sampler whose every proposal is an open candidate of `space`.

    `close` takes a candidate out; `build`, while set, restricts proposals to one build as long as
    that has open candidates. With no `base` they come build by build: a grid.
    """

    round = 4
    """Trials that a study had best ask for at once, in one build."""

    def __init__(self, space: Space, kind: str, base: BaseSampler | None) -> None:
        self.build: Build | None = None
        self.forced: list[Candidate] = []
        """What to propose next, in this order, whatever would be proposed otherwise."""
        self.costs = Costs()
        """What a probe takes now; for those samplers that weigh it."""
        self.memory = device_memory(space, kind)
        """What trials have taught of every candidate's peak."""
        self._learned: set[int] = set()
        self._base = base
        if base is None:
            self.round = 1
        ordered = sorted(
            enumerate(space.candidates), key=lambda item: (item[1].build, item[1].tokens)
        )
        self._place_in_grid = np.argsort([index for index, _ in ordered])
        self.distributions = distributions(space)
        self._candidates = space.candidates
        self._index = {candidate: i for i, candidate in enumerate(space.candidates)}
        self._open = np.ones(len(space.candidates), dtype=bool)
        self._avoided = np.zeros(len(space.candidates), dtype=bool)
        self._points = np.array([self._place(params(c)) for c in space.candidates])
        self._builds = {build: i for i, build in enumerate(space.builds)}
        self._build_of = np.array([self._builds[c.build] for c in space.candidates])

    def knows(self, candidate: Candidate) -> bool:
        """Whether it is one of the space's."""
        return candidate in self._index

    def close(self, candidate: Candidate) -> None:
        """Never propose `candidate` again."""
        self._open[self._index[candidate]] = False

    def reopen(self, candidate: Candidate) -> None:
        """Candidates that were closed, and then not tried after all, may be proposed again."""
        self._open[self._index[candidate]] = True

    def avoid(self, candidates: Iterable[Candidate]) -> None:
        """Propose these only when nothing else is open."""
        self._avoided[[self._index[candidate] for candidate in candidates]] = True

    def avoids(self, candidate: Candidate) -> bool:
        """Whether `candidate` is avoided, and something else is open."""
        avoided = bool(self._avoided[self._index[candidate]])
        return avoided and bool((self._open & ~self._avoided).any())

    def has_open(self, build: Build | None = None) -> bool:
        """Whether a candidate may still be proposed, of `build` if one is given."""
        if build is None:
            return bool(self._open.any())
        return bool((self._open & (self._build_of == self._builds[build])).any())

    def open_candidates(self) -> list[Candidate]:
        """What may still be proposed, ascending."""
        return [self._candidates[i] for i in np.flatnonzero(self._open)]

    def why_stop(self, study: Study) -> str | None:
        """Why no further candidate is worth a probe; None where one may be."""
        return None

    def trace(self, over: Array, more_base: float) -> None:
        """Start from traced memory instead of closed forms; see `memory.Parts.traced`."""
        self.memory.trace(over, more_base)

    def learn(self, study: Study) -> list[Candidate]:
        """Learn from trials that ended since the last call; returns those that still run."""
        pending: list[Candidate] = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._learned or len(trial.params) < len(AXES):
                continue  # known, or still being asked for
            candidate = Candidate(**trial.params)
            if trial.state == TrialState.RUNNING:
                self.close(candidate)
                pending.append(candidate)
            elif trial.state.is_finished():
                self._learned.add(trial.number)
                told = trial.user_attrs.get("outcome")
                outcome = None if told is None else outcome_from(told)
                if outcome is not None and not outcome.put_off:
                    self.close(candidate)
                    self._observe(candidate, outcome)
        return pending

    def _observe(self, candidate: Candidate, outcome: Outcome) -> None:
        self.memory.observe(candidate, outcome)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self.forced:
            return params(self.forced.pop(0))
        allowed = self._allowed()
        if self._base is None:
            return params(self._candidates[allowed[self._place_in_grid[allowed].argmin()]])
        proposal = self._proposal(self._base, study, trial)
        distance = np.abs(self._points[allowed] - self._place(proposal)).sum(axis=1)
        return params(self._candidates[allowed[distance.argmin()]])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise AssertionError(f"{param_name} is always sampled with the others")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if self._base is not None:
            self._base.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        if self._base is not None:
            self._base.after_trial(study, trial, state, values)

    def _allowed(self) -> Codes:
        """Indices of the candidates that may be proposed now; never empty while one is open."""
        if self.build is not None and self.has_open(self.build):
            return np.flatnonzero(self._open & (self._build_of == self._builds[self.build]))
        others = self._open & ~self._avoided
        return np.flatnonzero(others if others.any() else self._open)

    def _proposal(self, base: BaseSampler, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        relative = base.infer_relative_search_space(study, trial)
        proposal = base.sample_relative(study, trial, relative)
        for name, distribution in self.distributions.items():
            if name not in proposal:
                proposal[name] = base.sample_independent(study, trial, name, distribution)
        return proposal

    def _place(self, params: dict[str, Any]) -> list[float]:
        """A point in which each numeric axis is 0 to 1 long and other categories are 1 apart."""
        place: list[float] = []
        for name, distribution in self.distributions.items():
            if isinstance(distribution, IntDistribution):
                low, high, at = map(
                    float, (distribution.low, distribution.high, int(params[name]))
                )
                if distribution.log:
                    low, high, at = np.log([low, high, at])
                place.append((at - low) / ((high - low) or 1.0))
            elif isinstance(distribution, CategoricalDistribution):
                # Half on each of the two coordinates that differ: 1 in sum.
                place += [0.5 * (params[name] == choice) for choice in distribution.choices]
        return place


class FrontierSampler(SpaceSampler):
    """Proposes what promises the most gain per second; trials that still run count as pending.

    It learns from what trials hold, so it goes on from a loaded study as it would have gone on.
    """

    round = 1

    def __init__(self, space: Space, kind: str, objective: Objective) -> None:
        super().__init__(space, kind, None)
        self._frontier = Frontier(space, kind, objective, self.memory)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        pending = self.learn(study)
        if self.forced:
            return params(self.forced.pop(0))
        proposal = self._frontier.propose(self._allowed(), pending, self.costs)
        return params(self._candidates[proposal.index])

    def why_stop(self, study: Study) -> str | None:
        pending = self.learn(study)
        if not self.has_open():
            return "every candidate was tried"
        proposal = self._frontier.propose(self._allowed(), pending, self.costs)
        if proposal.gain >= ENOUGH:
            return None
        return f"no candidate is expected to gain {ENOUGH:.0%}"

    def trace(self, over: Array, more_base: float) -> None:
        self._frontier.trace(over, more_base)

    def _observe(self, candidate: Candidate, outcome: Outcome) -> None:
        self._frontier.observe(candidate, outcome)


def make(space: Space, options: Options, kind: str) -> SpaceSampler:
    """The sampler that `--sampler NAME` means on a device of this kind."""
    name, seed = options.sampler, options.seed
    if name == "frontier":
        return FrontierSampler(space, kind, options.objective)
    if name == "grid":
        return SpaceSampler(space, kind, None)
    if name == "random":
        return SpaceSampler(space, kind, RandomSampler(seed=seed))
    if name == "gp":
        from optuna.samplers import GPSampler  # imports torch when used: only when asked for

        base = GPSampler(seed=seed, deterministic_objective=False, warn_independent_sampling=False)
        return SpaceSampler(space, kind, base)
    return SpaceSampler(space, kind, TPESampler(seed=seed))


def params(candidate: Candidate) -> dict[str, Any]:
    """`candidate` as Optuna's parameters."""
    return {name: getattr(candidate, name) for name in AXES}
