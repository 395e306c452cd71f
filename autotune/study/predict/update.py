"""The optimizer's share of a step, from two accumulations of one candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.result.earlier import Earlier, each_seen
from autotune.space.outcome import Record
from autotune.space.workload import Workload


def update_share(found: Record, workload: Workload, earlier: Sequence[Earlier]) -> float | None:
    """Share of the update in a step: a step is grad_accum micro-steps and the update.

    An earlier study must have measured the same with another global batch.
    """
    step_s, accum = found.measured.step.median, workload.micro_steps(found.candidate)
    for study, seen in each_seen(earlier):
        if replace(study.workload, global_batch=workload.global_batch) != workload:
            continue
        if seen.candidate != found.candidate or study.workload == workload:
            continue
        other = study.workload.micro_steps(seen.candidate)
        if other != accum:
            micro_s = (step_s - seen.step.median) / (accum - other)
            share = 1 - accum * micro_s / step_s
            return share if 0 < share < 1 else None
    return None
