"""One probe: warm-up and timed steps, until the rule stops them.

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

from autotune.wire.messages import Entered, Phase, Probe, Progress, Report, Series
from probes.conditions import Watch
from probes.engines import Engine
from probes.memory import Meter
from probes.world import World

PROGRESS_S = 0.25
LIFE_SIGN_S = 5.0
"""Within a step of many micro-steps."""


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
    progress = _Progress(probe.number, world, tell)
    steps = _Steps(probe, engine, world, vocab_size, progress)
    began = time.monotonic()
    looking = watch()
    warmup = Series()
    stopped = False
    while not (stopped or probe.rule.warmed(warmup)):
        warmup.add(*steps.run())
        meter.sample()
        looking.sample()
        progress.made(warmup)
        stopped = probe.rule.hopeless(probe.needed_step_s, warmup, Series())
    retries = meter.retries()
    timed_began = time.monotonic()
    timed = Series()
    if not stopped:
        looking = watch()
        tell(Entered(Phase.TIMED))
    while not (stopped or probe.rule.settled(timed)):
        timed.add(*steps.run())
        meter.sample()
        looking.sample()
        progress.made(timed)
        stopped = probe.rule.hopeless(probe.needed_step_s, warmup, timed)
    conditions = looking.conditions()
    ended = time.monotonic()
    return Report(
        number=probe.number,
        step_s=timed.step_s or warmup.step_s[1:],
        warmup_step_s=warmup.step_s,
        warmup_s=timed_began - began,
        timed_s=ended - timed_began,
        stopped_early=stopped,
        loss=steps.loss,
        peaks=replace(meter.peaks(), alloc_retries=meter.retries() - retries),
        state_bytes=meter.held_bytes(),
        conditions=conditions,
    )


class _Progress:
    """Tells the study of steps as they are made, for all ranks, but not of every one."""

    def __init__(self, number: int, world: World, tell: Tell) -> None:
        self._number = number
        self._world = world
        self._tell = tell
        self._told = time.monotonic()
        self._steps: list[float] = []

    def made(self, steps: Series) -> None:
        """A step is done."""
        self._steps = steps.step_s
        self.alive(PROGRESS_S)

    def alive(self, every_s: float = LIFE_SIGN_S) -> None:
        """Something is done; said if nothing was for `every_s` seconds."""
        if self._world.rank == 0 and time.monotonic() - self._told > every_s:
            self._told = time.monotonic()
            self._tell(Progress(self._number, self._steps))


class _Steps:
    """Optimizer steps of one candidate on synthetic tokens, timed between synchronisations."""

    def __init__(
        self, probe: Probe, engine: Engine, world: World, vocab_size: int, progress: _Progress
    ) -> None:
        generator = torch.Generator().manual_seed(1 + world.rank)
        shape = (probe.micro_steps, probe.micro_batch, probe.seq_len + 1)
        tokens = torch.randint(vocab_size, shape, generator=generator).to(world.device)
        self._batches = [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in tokens]
        self._probe = probe
        self._engine = engine
        self._world = world
        self._progress = progress
        self._loss: Tensor | None = None

    @property
    def loss(self) -> float:
        """This rank's loss of the last micro-step."""
        return float("nan") if self._loss is None else float(self._loss)

    def run(self) -> list[float]:
        """Seconds of one optimizer step of the real schedule, and of what ran of it; the slowest
        rank's.

        Where fewer micro-steps run than the schedule has, those before the last are timed on
        their own and scaled: the last one also reduces gradients and is followed by the update.
        """
        *early, last = self._batches
        self._world.synchronize()
        began = time.perf_counter()
        for ids_bt, targets_bt in early:
            self._engine.forward_backward(ids_bt, targets_bt, last=False)
            self._progress.alive()
        scale = 1.0
        if early and self._probe.micro_steps < self._probe.grad_accum:
            self._world.synchronize()
            scale = (self._probe.grad_accum - 1) / len(early)
        between = time.perf_counter()
        self._loss = self._engine.forward_backward(*last, last=True)
        self._engine.update()
        self._world.synchronize()
        ended = time.perf_counter()
        return self._world.slowest((between - began) * scale + ended - between, ended - began)
