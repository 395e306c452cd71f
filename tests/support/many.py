"""Trials in a row that all run out of memory, though no rule says so beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial

from autotune.measure.runner import Job, Result
from autotune.result.folder.ask import Ask
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.space import Space
from autotune.study.samplers.in_order import InOrder
from tests.support.records import space
from tests.support.scripted import ok
from tests.support.studies import Run


def cube(side: int) -> Space:
    """side^3 candidates of one kind."""
    sides = range(1, side + 1)
    axes = {
        "depth": tuple(sides), "seq_len": tuple(64 * s for s in sides),
        "micro_batch": tuple(sides), "zero_stage": (0,), "offload": ("none",),
        "checkpointing": ("none",),
    }  # fmt: skip
    candidates = tuple(
        Candidate(depth=d, seq_len=64 * s, micro_batch=b)
        for d in sides
        for s in sides
        for b in sides
    )
    return replace(space(), axes=axes, candidates=candidates)


class Descending(InOrder):
    """The worst order after the smallest: none is covered by one that ran out before."""

    def propose(self, ask: Ask, optuna_study: OptunaStudy, trial: FrozenTrial) -> int:
        smallest = int(ask.allowed[0])
        return smallest if smallest == 0 else int(ask.allowed[self._order[ask.allowed].argmax()])


def descend(folder: Path, side: int) -> Counter[str]:
    """A whole study in which only the smallest of side^3 candidates fits; its verdicts."""
    among = cube(side)
    smallest = among.candidates[0]

    def answer(job: Job) -> Result:
        if job.candidate == smallest:
            return ok(0.1)
        return Result(verdict=Verdict.OOM, reason="rank 0 ran out of memory in phase warmup")

    with patch("autotune.study.samplers.make", lambda name, among, *rest: Descending(among)):
        done = Run(folder, answer, among)
    assert {c for purpose, c, _ in done.ended if purpose == "final"} == {smallest}
    return Counter(verdict for _, _, verdict in done.ended)
