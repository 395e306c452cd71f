"""Trials in a row that all run out of memory, though no rule says so beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from autotune.outcome import Verdict
from autotune.runner import Job, Result
from autotune.samplers import adapter as sampler
from autotune.samplers.adapter import SpaceSampler
from autotune.space.space import Candidate, Space
from support.records import space
from support.scripted import ok


def cube(side: int) -> Space:
    """side^3 candidates of one kind."""
    sides = range(1, side + 1)
    axes = {
        "depth": tuple(sides), "seq_len": tuple(64 * s for s in sides),
        "micro_batch": tuple(sides), "zero_stage": (0,), "offload": ("none",),
        "checkpointing": ("none",),
    }  # fmt: skip
    candidates = tuple(Candidate(d, 64 * s, b) for d in sides for s in sides for b in sides)
    return replace(space(), axes=axes, candidates=candidates)


class Descending(SpaceSampler):
    """The worst order after the smallest: none is covered by one that ran out before."""

    def __init__(self, space: Space, options: object, kind: str) -> None:
        super().__init__(space, kind, None)
        self.forced = [space.candidates[0]]
        self._place_in_grid = -self._place_in_grid


def descend(folder: Path, side: int) -> Counter[str]:
    """A whole study in which only the smallest of side^3 candidates fits; its verdicts."""
    from test_resume import Run

    among = cube(side)
    smallest = among.candidates[0]

    def answer(job: Job) -> Result:
        if job.candidate == smallest:
            return ok(0.1)
        return Result(Verdict.OOM, "rank 0 ran out of memory in phase warmup")

    make, sampler.make = sampler.make, Descending  # type: ignore[assignment]
    try:
        done = Run(folder, answer, among)
    finally:
        sampler.make = make
    assert {c for kind, c, _ in done.ended if kind == "final"} == {smallest}
    return Counter(verdict for _, _, verdict in done.ended)
