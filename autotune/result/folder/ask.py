"""The question of a study to its sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.space.arrays import Codes
from autotune.space.candidate import Build, Candidate


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of a probe at present."""

    live_build: Build | None = None
    start_s: Callable[[Build], float] = lambda build: 3.0
    """To start a group for a build without a live group."""
    compile_s: Callable[[Build], float] = lambda build: 0.0
    """To compile another shape in a live group of the build."""
    probe_s: float = 2.0
    """For warm-up and timed steps, if steps are short."""
    steps: int = 8
    """The least steps of a probe."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ask:
    """The candidates that may be proposed, and the facts about them."""

    allowed: Codes
    """Indices in the space of the candidates that may be proposed; never empty."""
    pending: tuple[Candidate, ...] = ()
    """Candidates whose probes have not ended."""
    fitting: tuple[Candidate, ...] = ()
    """Candidates that fit and were measured to the end."""
    costs: Costs = Costs()
    least_chance: float = 0.5
    """The least chance of fitting that is worth a probe, once something fits."""
    exactly: Candidate | None = None
    """The candidate that must be proposed."""
