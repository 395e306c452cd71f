"""What the study tells a sampler when it asks for a candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.space.arrays import Codes
from autotune.space.candidate import Build, Candidate


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that a probe takes now."""

    live_build: Build | None = None
    start_s: Callable[[Build], float] = lambda build: 3.0
    """Of starting a group for a build that is not live."""
    compile_s: Callable[[Build], float] = lambda build: 0.0
    """Of compiling for another shape in a live group of it."""
    probe_s: float = 2.0
    """Of warm-up and timed steps of a short step."""
    steps: int = 8
    """Steps that a probe runs at least."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ask:
    """What may be proposed now, and what is known that is no belief."""

    allowed: Codes
    """Places in the space of the candidates that may be proposed; never empty."""
    pending: tuple[Candidate, ...] = ()
    """What was asked for before and has not ended yet."""
    fitting: tuple[Candidate, ...] = ()
    """What was measured to the end and fits."""
    costs: Costs = Costs()
    least_chance: float = 0.5
    """Of fitting: with less, a candidate is not worth a probe once something fits, while others
    are likelier. The search knows how many were lost so far, and what it has left."""
    exactly: Candidate | None = None
    """The one candidate to propose, whatever would be proposed otherwise."""
