"""One probe: warm-up, timed steps, and the rule that stops them.

All ranks take the same decisions without asking: after each step they agree on its time (the
slowest rank's), and every decision is a function of those agreed times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from autotune.wire import Entered, Phase, Probe, Progress, Report, Rule, interval
from probes.conditions import Watch
from probes.engines import Engine
from probes.memory import Meter
from probes.world import World

HOPELESS_MARGIN = 1.25
"""Before an interval exists: the fastest step so far is this much too slow for the incumbent."""
PROGRESS_S = 0.25


class Tell(Protocol):
    """Sends to the study."""

    def __call__(self, message: Entered | Progress, /) -> None: ...


def measure(
    probe: Probe,
    *,
    engine: Engine,
    world: World,
    meter: Meter,
    vocab_size: int,
    watch: Callable[[], Watch],
    tell: Tell,
) -> Report:
    """Run `probe` in the live `engine`. Raises whatever its steps raise."""
    engine.prepare(probe.micro_batch, probe.micro_steps)
    meter.reset()
    tell(Entered(Phase.WARMUP))
    steps = _Steps(probe, engine, world, vocab_size)
    progress = _Progress(probe.number, world, tell)
    began = time.monotonic()
    warmup: list[float] = []
    stopped = False
    while not (stopped or warmed(probe.rule, warmup)):
        warmup.append(steps.run())
        meter.sample()
        progress.made(warmup)
        stopped = hopeless(probe, warmup, [])
    retries = meter.retries()
    timed_began = time.monotonic()
    looking = watch()
    timed: list[float] = []
    if not stopped:
        tell(Entered(Phase.TIMED))
    while not (stopped or settled(probe.rule, timed)):
        timed.append(steps.run())
        meter.sample()
        looking.sample()
        stopped = hopeless(probe, warmup, timed)
        progress.made(timed)
    conditions = looking.conditions()
    ended = time.monotonic()
    return Report(
        number=probe.number,
        step_s=timed or warmup[1:],
        warmup_step_s=warmup,
        warmup_s=timed_began - began,
        timed_s=ended - timed_began,
        stopped_early=stopped,
        loss=steps.loss,
        peaks=replace(meter.peaks(), alloc_retries=meter.retries() - retries),
        conditions=conditions,
    )


def warmed(rule: Rule, steps: list[float]) -> bool:
    """Whether warm-up may end: enough full steps, and the last two agree or time is up."""
    if len(steps) < rule.warmup_steps:
        return False
    settled = abs(steps[-1] - steps[-2]) <= rule.warmup_tolerance * steps[-1]
    return settled or sum(steps) >= rule.warmup_limit_s


def settled(rule: Rule, steps: list[float]) -> bool:
    """Whether timing may end: enough steps, and the median is known well enough or time is up."""
    if len(steps) < rule.timed_steps:
        return False
    return interval(steps).half_width <= rule.half_width or sum(steps) >= rule.timed_limit_s


def hopeless(probe: Probe, warmup: list[float], timed: list[float]) -> bool:
    """Whether this candidate can no longer beat the incumbent.

    Never before the warm-up's full steps are through: the memory peak stands only then.
    """
    if probe.needed_step_s is None or len(warmup) < probe.rule.warmup_steps:
        return False
    if len(timed) >= probe.rule.timed_steps:
        return interval(timed).low > probe.needed_step_s
    return min(warmup[1:] + timed) > HOPELESS_MARGIN * probe.needed_step_s


class _Progress:
    """Tells the study of steps as they are made, for all ranks, but not of every one."""

    def __init__(self, number: int, world: World, tell: Tell) -> None:
        self._number = number
        self._world = world
        self._tell = tell
        self._told = time.monotonic()

    def made(self, step_s: list[float]) -> None:
        if self._world.rank == 0 and time.monotonic() - self._told > PROGRESS_S:
            self._told = time.monotonic()
            self._tell(Progress(self._number, step_s))


class _Steps:
    """Optimizer steps of one candidate on synthetic tokens, timed between synchronisations."""

    def __init__(self, probe: Probe, engine: Engine, world: World, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(1 + world.rank)
        shape = (probe.micro_steps, probe.micro_batch, probe.seq_len + 1)
        tokens = torch.randint(vocab_size, shape, generator=generator).to(world.device)
        self._batches = [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in tokens]
        self._probe = probe
        self._engine = engine
        self._world = world
        self._loss: Tensor | None = None

    @property
    def loss(self) -> float:
        """This rank's loss of the last micro-step."""
        return float("nan") if self._loss is None else float(self._loss)

    def run(self) -> float:
        """Seconds of one optimizer step of the real schedule, the slowest rank's.

        Where fewer micro-steps run than the schedule has, those before the last are timed on
        their own and scaled: the last one also reduces gradients and is followed by the update.
        """
        *early, last = self._batches
        self._world.synchronize()
        began = time.perf_counter()
        for ids_bt, targets_bt in early:
            self._engine.forward_backward(ids_bt, targets_bt, last=False)
        scale = 1.0
        if early and self._probe.micro_steps < self._probe.grad_accum:
            self._world.synchronize()
            scale = (self._probe.grad_accum - 1) / len(early)
        between = time.perf_counter()
        self._loss = self._engine.forward_backward(*last, last=True)
        self._engine.update()
        self._world.synchronize()
        ended = time.perf_counter()
        return self._world.slowest((between - began) * scale + ended - between)
