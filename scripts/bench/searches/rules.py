"""Rules of other tools: each yields candidates and gets their values, None if lost.

They only know the axis micro_batch; DeepSpeed's also the stage. For them, memory runs out at the
ceiling. They take the other axes in random order until the probes are spent.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from shared import probing

from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Result
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict, judge
from autotune.study.prober import rule_for
from autotune.wire.budget import VirtualTime
from searches.grids import Course, Point, Truth, value

Walk = Generator[Candidate, float | None, None]
Ladder = Sequence[Candidate]
"""Candidates that only differ in micro_batch, ascending."""


def accelerate(ladder: Ladder) -> Walk:
    """`find_executable_batch_size`: from the largest down by a tenth, until one fits.

    Source: accelerate/utils/memory.py, version 1.15.
    """
    batch = ladder[-1].micro_batch
    while fits := [c for c in ladder if c.micro_batch <= batch]:
        if (yield fits[-1]) is not None:
            return
        batch = int(fits[-1].micro_batch * 0.9)


def power(ladder: Ladder) -> Walk:
    """Lightning's `scale_batch_size(mode="power")`: from 2, doubled until it does not fit.

    Source: lightning/pytorch/tuner/batch_size_scaling.py, version 2.6.
    """
    yield from _doubling(ladder)


def bisect(ladder: Ladder) -> Walk:
    """Lightning's `mode="binsearch"`: doubled, then bisected."""
    low, high = yield from _doubling(ladder)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield ladder[middle]) is None:
            high = middle
        else:
            low = middle


def _doubling(ladder: Ladder) -> Generator[Candidate, float | None, tuple[int, int]]:
    """Doubles from 2; returns the places of the last that fitted and the first that did not."""
    low, place = -1, 0
    batch = 2
    while True:
        place = next((i for i, c in enumerate(ladder) if c.micro_batch >= batch), len(ladder))
        if place == len(ladder):
            return low, place
        if (yield ladder[place]) is None:
            return low, place
        low, batch = place, 2 * ladder[place].micro_batch


def deepspeed(stages: Sequence[Ladder]) -> Walk:
    """DeepSpeed's autotuner: stage by stage, the ends of the ladder, then three between.

    The axis's end stands for its own estimate of the largest micro-batch. Source:
    deepspeed/autotuning/autotuner.py, version 0.19.8: `tune_space`,
    `get_min_max_micro_batch_size`, `get_tuning_micro_batch_size_list`.
    """
    previous_most = 0
    for ladder in stages:
        low = next((i for i, c in enumerate(ladder) if c.micro_batch >= previous_most), None)
        if low is None:
            return
        seen: dict[int, float | None] = {low: (yield ladder[low])}
        if seen[low] is None:
            return
        high = yield from _highest(ladder, low, seen)
        stride = max(1, (high - low) // 3)
        for place in range(low, high + 1, stride):
            if place not in seen:
                seen[place] = yield ladder[place]
        if ladder[high].micro_batch < previous_most:
            return
        previous_most = ladder[high].micro_batch


def _highest(
    ladder: Ladder, low: int, seen: dict[int, float | None]
) -> Generator[Candidate, float | None, int]:
    """The place of the largest that fits or is still worth it, if that at `low` fits.

    Measured values are added to `seen`.
    """
    high = len(ladder) - 1
    if high not in seen:
        seen[high] = yield ladder[high]
    if seen[high] is not None:
        return high
    reached, left, right = seen[low], low, high
    while left <= right:
        middle = (left + right) // 2
        if middle in seen:
            left = middle + 1
            continue
        seen[middle] = now = yield ladder[middle]
        if now is None:
            right = middle - 1
            continue
        left = middle + 1
        if reached and (now - reached) / reached < 0.05:
            break
        reached = now
    return left - 1


OF_A_LADDER: dict[str, Callable[[Ladder], Walk]] = {
    "accelerate": accelerate, "power": power, "bisect": bisect,
}  # fmt: skip
OF_STAGES: dict[str, Callable[[Sequence[Ladder]], Walk]] = {"deepspeed": deepspeed}
RULES = (*OF_A_LADDER, *OF_STAGES)


def rule_course(truth: Truth, name: str, seed: int, probes: int) -> Course:
    """One search by the rule `name`."""
    now = VirtualTime()
    runner = Replay(truth.grid, truth.space.limits, now, seed)
    stopping = rule_for(truth.grid.device_kind, truth.options)
    course: Course = []
    best: tuple[float, Candidate] | None = None
    for walk in _walks(truth, name, seed):
        measured: float | None = None
        while len(course) < probes:
            try:
                candidate = walk.send(measured)
            except StopIteration:
                break
            accum = truth.space.workload.micro_steps(candidate)
            job = probing(candidate, stopping, grad_accum=accum)
            measured = _fitting_value(truth, candidate, runner.run(job, math.inf))
            if measured is not None and (best is None or measured > best[0]):
                best = (measured, candidate)
            course.append(Point(now(), best and best[1], measured is None))
    return course


def _walks(truth: Truth, name: str, seed: int) -> Iterator[Walk]:
    """The rule, started anew in each cell of axes that it does not know, in random order."""
    ladders: dict[Any, list[Candidate]] = defaultdict(list)
    for c in truth.space.candidates:
        ladders[(c.depth, c.seq_len, c.checkpointing, c.zero_stage, c.offload)].append(c)
    cells: dict[Any, list[Ladder]] = defaultdict(list)
    for key, ladder in sorted(ladders.items()):
        cells[key[:3] if name in OF_STAGES else key].append(ladder)
    order = sorted(cells)
    random.Random(seed).shuffle(order)
    for cell in order:
        if name in OF_STAGES:
            yield OF_STAGES[name](cells[cell])
        else:
            yield OF_A_LADDER[name](*cells[cell])


def _fitting_value(truth: Truth, candidate: Candidate, result: Result) -> float | None:
    if result.report is None:
        return None
    if judge(result.report.peaks, truth.space.limits)[0] != Verdict.OK:
        return None
    return value(truth.space.workload, candidate, result.report)
