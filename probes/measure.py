"""One probe: warm-up and timed steps, until the rule stops them.

All ranks take the same decisions without asking. After each step they agree on its time (the
slowest rank's), and every decision follows from those times. With a decision on local facts, ranks
would wait for each other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.wire.emulated import emulating
from autotune.wire.ranks import Entered, ModelSpec, Probe, Progress, Rows
from autotune.wire.reports import EVALUATE, SAVE, TRAIN, InPhase, Peaks, Report
from autotune.wire.stopping import Phase, Series, Steps
from probes import routing
from probes.compiling import Compiler
from probes.conditions import Watch
from probes.engines import Engine
from probes.memory import Meter
from probes.models import Batch, family
from probes.scratch import BriefFiles
from probes.world import World

Compiles = Literal["", "model", "optimizer"]
"""The use of torch.compile: for the model, at each of its shapes, or for the optimizer's step."""
PROGRESS_S = 0.25
LIFE_SIGN_S = 5.0
"""Seconds between signs of life within a step of many micro-steps."""
LONGEST_STEPS = 2
"""Steps on the longest samples, if lengths differ. The first makes the optimizer's state; the
second then shows the peak of training."""
ROUTED_STEPS = 2
"""Steps with a hot expert, after the timed ones. The first makes room; the second is timed."""


class Tell(Protocol):
    """Sends to the study."""

    def __call__(self, message: Entered | Progress, /) -> None: ...


@dataclass
class History:
    """Facts from earlier probes of the same group."""

    ran_s: float = 0.0
    """Seconds of steps."""
    attention: str = ""
    """Kernels of scaled dot product attention, by torch's names; empty if none was seen."""
    compiled: set[tuple[int, ...]] = field(default_factory=set)
    """Compiled shapes: micro_batch and seq_len, or () for the single compilation."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A group's rank with its engine, ready for probes."""

    engine: Engine
    world: World
    meter: Meter
    model: ModelSpec
    watch: Callable[[], Watch]
    compiles: Compiles = ""
    compiler: Compiler | None = None
    history: History = field(default_factory=History)

    def probe(self, probe: Probe, tell: Tell) -> Report:
        """Run `probe`. Raises the errors of its steps.

        If something compiles, there is a step for it before the warm-up.
        """
        if probe.routing:
            routing.force(probe.routing[0])
        self._begin(probe)
        progress = _Progress(probe.number, self.world, tell)
        stepper = _Stepper(probe, self.engine, self.world, self.model, progress)
        before = self._compiled()
        compiling = self._compile(probe, stepper, tell)
        tell(Entered(Phase.WARMUP))
        steps = Steps(probe.rule, probe.needed_step_s, self.history.ran_s)
        wall_s = {Phase.WARMUP: 0.0, Phase.TIMED: 0.0}
        for phase in wall_s:
            if steps.stopped_early:
                break
            began = time.monotonic()
            if phase is Phase.TIMED:
                self.meter.warmed()
                tell(Entered(phase))
            elif probe.longest:
                for _ in range(LONGEST_STEPS):
                    stepper.longest()
                    self.meter.sample()
            looking = self.watch()
            retries = self.meter.retries()
            while steps.wanted(phase):
                steps.add(phase, *_step(stepper, self.history, looks=not self.compiles))
                if looking.due:
                    self.meter.sample()
                    looking.sample()
                if phase is Phase.TIMED and probe.rule.calm < 1 and steps.timed.due:
                    [steps.others] = self.world.slowest(looking.others_share(self.world.here))
                progress.made(steps.of(phase))
            wall_s[phase] = time.monotonic() - began
            self.meter.sample()
            looking.sample()
            retried = self.meter.retries() - retries if phase is Phase.TIMED else 0
        self.history.ran_s, timed = steps.ran_s, steps.timed
        largest = Peaks.largest([self.meter.peaks(), *compiling])
        peaks = replace(largest, alloc_retries=retried)
        compile_s, shape_s, times = self._compiled()
        compile_s, times = compile_s - before[0], times - before[2]
        if self.compiler is not None:
            compile_s, shape_s = self.world.slowest(compile_s, shape_s)
        report = Report(
            number=probe.number,
            step_s=steps.step_s,
            warmup_step_s=steps.warmup.step_s,
            warmup_s=wall_s[Phase.WARMUP],
            timed_s=wall_s[Phase.TIMED],
            stopped_early=steps.stopped_early,
            loss=stepper.loss,
            peaks=peaks,
            state_bytes=self.meter.held_bytes(),
            conditions=replace(looking.conditions(), foreign_bytes=self.meter.foreign_bytes()),
            attention=self.history.attention,
            compile_s=compile_s,
            compilations=times,
            shape_compile_s=shape_s,
            energy=looking.energy.used(sum(timed.step_s)) if timed.step_s else None,
        )
        return self._other_phases(probe, report, stepper, tell)

    def _other_phases(self, probe: Probe, report: Report, stepper: _Stepper, tell: Tell) -> Report:
        """`report` with what `probe` asks for beside its steps."""
        for other in probe.routing[1:]:
            tell(Entered(Phase.HOT))
            report = self._routed(other, report, stepper)
        phases = {TRAIN: InPhase(peaks=report.peaks, seconds=0.0, count=0)} | report.phases
        if probe.eval_batch:
            tell(Entered(Phase.EVALUATE))
            batch = stepper.batch([[probe.seq_len]] * probe.eval_batch)
            phases[EVALUATE] = self._in_phase(lambda: self._evaluate(batch))
        if probe.save:
            tell(Entered(Phase.SAVE))
            scratch = BriefFiles("" if emulating() else probe.save_to)
            saved = self._in_phase(lambda: self.engine.save(scratch, full=probe.save == "full"))
            if not self.world.total(scratch.refused):
                saved = replace(saved, written_bytes=self.world.total(scratch.written_bytes))
            phases[SAVE] = saved
        if len(phases) == 1:
            return report
        peaks = Peaks.largest([report.peaks, *(each.peaks for each in phases.values())])
        return replace(report, peaks=peaks, phases=phases)

    def _evaluate(self, batch: Batch) -> None:
        """Evaluate `batch` as Trainer does that computes metrics: each rank gets all logits."""
        kept = [self.world.gathered(each) for each in self.engine.evaluate(batch)]
        self.meter.sample()
        del kept

    def _in_phase(self, run: Callable[[], None]) -> InPhase:
        """The peaks of `run`, with what the allocator holds from before, and its seconds."""
        self.meter.anew()
        began = time.perf_counter()
        run()
        self.world.synchronize()
        [seconds] = self.world.slowest(time.perf_counter() - began)
        return InPhase(peaks=self.meter.peaks(), seconds=seconds, count=1)

    def _begin(self, probe: Probe) -> None:
        """Have the next step be as training's first."""
        rank = self.world.rank
        self.engine.prepare(probe.samples(rank), probe.micro_steps, probe.loss_scale(rank))
        self.meter.reset()

    def _compile(self, probe: Probe, stepper: _Stepper, tell: Tell) -> list[Peaks]:
        """Make a step for what compiles, if anything does; returns its peaks.

        The next step is as with code that was there: compiling leaves gaps of its own in memory.
        """
        shapes = stepper.shapes if self.compiles == "model" else {()}
        if not self.compiles or shapes <= self.history.compiled:
            return []
        tell(Entered(Phase.COMPILE))
        stepper.longest()
        stepper.step()
        self.history.compiled |= shapes
        peaks = self.meter.peaks()
        self._begin(probe)
        return [peaks]

    def _routed(self, other: str, report: Report, stepper: _Stepper) -> Report:
        """`report` with the peaks of steps with another routing, too, which follow its steps: the
        allocator keeps what it has."""
        routing.force(other)
        retries = self.meter.retries()
        stepper.longest()
        for _ in range(ROUTED_STEPS):
            step_s, _ = stepper.step()
            self.meter.sample()
        retried = self.meter.retries() - retries
        found = replace(self.meter.peaks(), alloc_retries=retried)
        largest = Peaks.largest([report.peaks, found])
        trained = InPhase(peaks=report.peaks, seconds=0.0, count=0)
        phases = {TRAIN: trained, other: InPhase(peaks=largest, seconds=step_s, count=1)}
        return replace(report, loss=stepper.loss, peaks=largest, phases=phases)

    def _compiled(self) -> tuple[float, float, int]:
        """Seconds of compiling so far, seconds for each shape, and number of compilations."""
        if self.compiler is None:
            return 0.0, 0.0, 0
        one_for_all = self.model.dynamic == "on" or self.compiles != "model"
        shapes = 1 if one_for_all else max(1, len(self.history.compiled))
        return self.compiler.seconds, self.compiler.seconds / shapes, self.compiler.times


class Attention(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which kernels compute scaled dot product attention: torch chooses them by shape,
    dtype and device."""

    _NAME = re.compile(r"_scaled_dot_product_(\w+?)(_for_cpu|_overrideable)?$")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: set[str] = set()

    @property
    def names(self) -> str:
        return ", ".join(sorted(self._seen)) or "none"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if found := self._NAME.search(func.overloadpacket.__name__):
            self._seen.add(found[1])
        return func(*args, **(kwargs or {}))


class Looks(TorchFunctionMode):
    """Shows calls of attention to `attention`, and no other operation: each would take twice its
    time, and what it holds would move the peak."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self._attention = attention

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What `func` returns."""
        attends = func is functional.scaled_dot_product_attention
        with self._attention if attends else nullcontext():
            return func(*args, **(kwargs or {}))


def _step(stepper: _Stepper, history: History, *, looks: bool) -> list[float]:
    """One step. A group's first step is not timed, and shows its kernels. Compiled code hides its
    kernels, and an eager step instead would have another peak."""
    if history.attention or not looks:
        return stepper.step()
    attention = Attention()
    with Looks(attention):
        step_s = stepper.step()
    history.attention = attention.names
    return step_s


class _Progress:
    """Tells the study of some steps as they are made, for all ranks."""

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
        """Send a sign of life, at most every `every_s` seconds."""
        if self._world.rank == 0 and time.monotonic() - self._told > every_s:
            self._told = time.monotonic()
            self._tell(Progress(self._number, self._steps))


class _Stepper:
    """Optimizer steps of one candidate on random batches, timed between synchronisations by the
    world's clock. Their running time is always the host's."""

    def __init__(
        self, probe: Probe, engine: Engine, world: World, model: ModelSpec, progress: _Progress
    ) -> None:
        self._generator = torch.Generator().manual_seed(1 + world.rank)
        self._model = model
        self._probe = probe
        self._engine = engine
        self._world = world
        self._progress = progress
        self._loss: Tensor | None = None
        same = [[probe.seq_len]] * probe.samples(world.rank)
        drawn = [by_rank[world.rank] for by_rank in probe.lengths] or [same] * probe.micro_steps
        self._batches = [self.batch(rows) for rows in drawn]
        self._longest = [self.batch(probe.longest)] if probe.longest else []
        every = [*drawn, probe.longest] if probe.longest else drawn
        self.shapes = {(len(rows), probe.padded(rows)) for rows in every}
        """Samples and tokens of its batches."""

    @property
    def loss(self) -> float:
        """This rank's loss of the last micro-step."""
        return float("nan") if self._loss is None else float(self._loss)

    def step(self) -> list[float]:
        """Seconds of an optimizer step of the real schedule, and of the part that ran, on the
        slowest rank. For a cycle of lengths: the mean step, and the whole cycle."""
        micro_steps = self._probe.micro_steps
        steps = max(1, len(self._batches) // micro_steps)
        taken = []
        for step in range(steps):
            places = range(step * micro_steps, (step + 1) * micro_steps)
            taken.append(self._step([self._batches[i % len(self._batches)] for i in places]))
            self._progress.alive()
        whole_s, ran_s = (sum(seconds) for seconds in zip(*taken, strict=True))
        return [whole_s / steps, ran_s]

    def longest(self) -> None:
        """One step on only the longest samples, if there are any."""
        if not self._longest:
            return
        self._step(self._longest * self._probe.micro_steps)
        self._progress.alive()

    def batch(self, rows: Rows) -> Batch:
        """A batch of samples of these lengths on the device, as from a collator."""
        padded, lengths = self._probe.padded(rows), [sum(row) for row in rows]
        made = family(self._model.name)
        batch = made.batch(self._model, len(rows), padded, self._generator)
        if self._probe.pack:
            batch = made.packed(self._model, batch, rows)
        elif min(lengths) < padded:
            batch = made.masked(self._model, batch, lengths)
        return {name: on_cpu.to(self._world.device) for name, on_cpu in batch.items()}

    def _step(self, batches: Sequence[Batch]) -> list[float]:
        """One optimizer step; returns what `step` does.

        If fewer micro-steps run than the schedule has, those before the last are timed on their
        own and scaled. The last one also reduces gradients, and the update follows it.
        """
        *early, last = batches
        world = self._world
        world.synchronize()
        started, began = time.perf_counter(), world.now()
        for batch in early:
            self._engine.forward_backward(batch, last=False)
            self._progress.alive()
        scale = 1.0
        if early and self._probe.micro_steps < self._probe.grad_accum:
            world.synchronize()
            scale = (self._probe.grad_accum - 1) / len(early)
        between = world.now()
        self._loss = self._engine.forward_backward(last, last=True)
        self._engine.update()
        world.synchronize()
        step_s = (between - began) * scale + world.now() - between
        return world.slowest(step_s, time.perf_counter() - started)
