"""The expected memory and speed of every candidate on imagined GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from autotune.device.cards import Card
from autotune.device.imagined import ImaginedDevice
from autotune.measure.testbed.counted import CountModels
from autotune.measure.testbed.resolve import resolve
from autotune.result.earlier import Earlier
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.options import Options
from autotune.space.outcome import Outcome, step_cost_for
from autotune.space.space import LEFT_OUT, NO_LIMIT, Fixed, Space
from autotune.space.trace import Trace, request, why_untraced
from autotune.study.predict.memory import (
    MemoryModel,
    Prediction,
    before_gradients,
    host_memory,
    unused,
)
from autotune.study.predict.predictor import Predictor
from autotune.study.predict.speed import MAGNITUDES, Magnitudes
from autotune.wire.helpers import Count, Counted, Describe, Described

A = TypeVar("A")
T = TypeVar("T")

Z90 = 1.645
"""Standard deviations on either side of a 90 % interval."""
LIKELY = 0.8
"""A candidate likely fits if its probability to stay within the limits is at least this."""
MODELLED_OFF = 0.24
"""17 of 19 published runs are within this share of the speed of emulated GPUs:
results/emulated_time.md. No interval of a modelled speed is narrower."""
KIND = "cuda"
COUNTED = 4
"""Lengths to count: three define a parabola, and the fourth checks it."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of the peak memory, in bytes."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    """Gathered weights, and gradients on their way."""
    unused: float
    """Reserved by torch's allocator, but not used."""
    outside: float
    """Outside torch's allocator: CUDA's context, libraries, communication."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expectation for one candidate."""

    candidate: Candidate
    engine: str
    gpus: int
    grad_accum: int
    global_batch: int
    """In samples: micro_batch x grad_accum x gpus."""
    peak: Prediction
    """The peak of a GPU, with a 90 % interval."""
    parts: Parts
    host_bytes: int
    """Host memory of all ranks."""
    chance: float
    """Probability to stay within the limits."""
    limited_by: Literal["device", "host"]
    """The memory whose limit it is likelier to exceed."""
    step_s: tuple[float, float, float]
    """Seconds of an optimizer step: low end, median and high end of the 90 % interval."""
    tokens_per_s: tuple[float, float, float]
    """Over all GPUs; the slow end comes first."""
    traffic_bytes: float
    """Bytes that a rank sends in an optimizer step, by ring algorithms."""
    value: float
    """Median of the objective."""
    weighed: bool = False
    """Whether real ranks on emulated GPUs gave the peak, or ran out of memory."""

    @property
    def global_batch_tokens(self) -> int:
        return self.global_batch * self.candidate.seq_len

    @property
    def fits(self) -> bool:
        return self.chance >= LIKELY

    @property
    def may_fit(self) -> bool:
        """Whether it more likely fits than not."""
        return self.chance >= 0.5


class Helpers:
    """Keeps the answers of a helper process: all numbers of GPUs ask the same questions."""

    def __init__(
        self, count: CountModels, describe: Callable[[Describe], Described | str]
    ) -> None:
        self._count = count
        self._describe = describe
        self._known: dict[str, Any] = {}
        self.lengths: Sequence[int] = ()
        """Lengths to count and trace with each request, for later requests."""

    def count(self, asked: Count) -> Counted:
        """The count. For some of `lengths` a parabola through a few of them gives the FLOPs."""
        if len(self.lengths) > COUNTED and set(asked.seq_lens) < set(self.lengths):
            places = np.linspace(0, len(self.lengths) - 1, COUNTED).round().astype(int)
            few = [self.lengths[place] for place in places]
            found = self._once(self._count, replace(asked, seq_lens=few))
            known = [_parabola(few, each) for each in found.flops_per_sample]
            if all(known):
                of = [[at(n) for n in asked.seq_lens] for at in known if at]
                return replace(found, flops_per_sample=of)
        return self._once(self._count, asked)

    def describe(self, asked: Describe) -> Described | str:
        """The trace, or why there is none."""
        if set(asked.seq_lens) < set(self.lengths):
            found = self._once(self._describe, replace(asked, seq_lens=list(self.lengths)))
            if isinstance(found, str):
                return found
            found = _at(found, [self.lengths.index(n) for n in asked.seq_lens])
            if min(min(map(min, of.early_bytes)) for of in found.models) >= 0:
                return found
        return self._once(self._describe, asked)

    def _once(self, ask: Callable[[A], T], asked: A) -> T:
        key = repr(asked)
        if key not in self._known:
            self._known[key] = ask(asked)
        found: T = self._known[key]
        return found


def _parabola(lengths: Sequence[int], flops: Sequence[float]) -> Callable[[int], float] | None:
    """FLOPs of a sample by its length: attention grows with the square. None if the last of
    `flops` is not on the parabola through the first three."""
    (a, b, c, last), (at_a, at_b, at_c, at_last) = lengths, flops
    slope = (at_b - at_a) / (b - a)
    bend = ((at_c - at_a) / (c - a) - slope) / (c - b)

    def at(length: int) -> float:
        return at_a + (length - a) * (slope + (length - b) * bend)

    return at if math.isclose(at(last), at_last, rel_tol=1e-9) else None


def _at(found: Described, lengths: Sequence[int]) -> Described:
    """`found` for only the lengths in these places."""

    def some(values: list[list[int]]) -> list[list[int]]:
        return [values[place] for place in lengths]

    models = [
        replace(of, early_bytes=some(of.early_bytes), late_bytes=some(of.late_bytes))
        for of in found.models
    ]
    return replace(found, models=models)


Weighed = Mapping[tuple[int, Candidate], Outcome]
"""Outcomes on emulated GPUs, by number of GPUs and candidate."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    options: Options
    card: Card
    host_bytes: int | None
    """Bytes of host memory; None if it is not checked."""
    fused: bool = True
    """Whether to assume fused kernels, even if they are not installed here."""
    earlier: Sequence[Earlier] = ()
    weighed: Weighed = field(default_factory=dict)

    @property
    def speed_measured(self) -> bool:
        """Whether `earlier` studies ran on this card."""
        return any(study.timed for study in self.earlier)

    @property
    def speed_known(self) -> bool:
        """Whether the card is known by name, or was measured."""
        return self.speed_measured or magnitudes(self.card) is not None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The expectations for one number of GPUs."""

    space: Space
    gpus: int
    untraced: str
    """Why closed forms were used; empty if the model was traced."""
    speed_known: bool
    expected: list[Expected]
    """In the order of the space's candidates."""


def plan(asked: PlanRequest, gpus: int, helpers: Helpers) -> Plan:
    """Expectations for this number of GPUs.

    Raises:
        UsageError: there is no such model, or no candidate.
        ModelError: the model's own code failed.
    """
    options = asked.options.but(world_size=gpus)
    space = resolve(
        options, ImaginedDevice(asked.card, gpus), asked.host_bytes or NO_LIMIT, cores=1,
        count=helpers.count, here=False, fused=asked.fused,
    )  # fmt: skip
    space = _apart(space)
    predictor = Predictor(space, KIND, asked.earlier, known=magnitudes(asked.card))
    wanted = request(space, KIND)
    found = helpers.describe(wanted) if wanted.models else why_untraced(space, KIND)
    stay = True
    if isinstance(found, Described):
        predictor.trace(Trace(wanted, found))
        stay = wanted.gradients_stay
    for (count, candidate), outcome in asked.weighed.items():
        if count == gpus and candidate in space.candidates:
            predictor.observe(candidate, outcome, timed=not asked.speed_measured)
    untraced = found if isinstance(found, str) else _holes(found)
    return Plan(
        space=space, gpus=gpus, untraced=untraced, speed_known=asked.speed_known,
        expected=_expected(asked, space, predictor, stay=stay),
    )  # fmt: skip


def _apart(space: Space) -> Space:
    """Leaves out ZeRO stages that change nothing on one GPU, if other candidates remain."""
    if space.workload.world_size > 1:
        return space
    kept = [c for c in space.candidates if c.zero_stage == 0 or c.offload != "none"]
    alike = {c.zero_stage for c in space.candidates if c.zero_stage and c.offload == "none"}
    if not kept or not alike:
        return space
    stages = f"--zero {','.join(map(str, sorted(alike)))}"
    what = Fixed(LEFT_OUT, f"{stages} without offload", "one GPU has nobody to share with")
    return replace(space, candidates=tuple(kept), fixed=(*space.fixed, what))


def _holes(found: Described) -> str:
    traced = all(each.held_bytes >= 0 for each in found.models)
    return "" if traced else "a trace of the model failed"


def magnitudes(card: Card) -> Magnitudes | None:
    """The magnitudes of a known card; None for an unknown one."""
    if card.flops_per_s is None or card.memory_bytes_per_s is None:
        return None
    # Large products reach half of the data sheet's rate.
    return replace(
        MAGNITUDES[KIND],
        flops_per_s=0.55 * card.flops_per_s,
        memory_bytes_per_s=0.8 * card.memory_bytes_per_s,
    )


def _expected(
    asked: PlanRequest, space: Space, predictor: Predictor, *, stay: bool
) -> list[Expected]:
    workload, options = space.workload, asked.options
    hosts = predictor.host_memory or host_memory(
        [(workload, candidate) for candidate in space.candidates], KIND
    )
    chance = predictor.memory.chance(space.limits.limit_bytes)
    # A host that is not checked has no limit.
    host_chance = hosts.chance(space.limits.host_limit_bytes)
    speed = predictor.log_step_s()
    found = []
    for place, candidate in enumerate(space.candidates):
        median, off = float(speed.mean[place]), Z90 * float(speed.deviation[place])
        if asked.weighed:
            off = max(off, math.log1p(MODELLED_OFF))
        step_s = tuple(float(np.exp(median + by)) for by in (-off, 0.0, off))
        engine, ranks = engine_of(workload, candidate), workload.world_size
        accum = workload.micro_steps(candidate)
        samples = workload.global_batch_samples(candidate)
        tokens = samples * candidate.seq_len
        outcome = asked.weighed.get((ranks, candidate))
        peak = predictor.memory.predict(place, Z90)
        fits = float(min(chance[place], host_chance[place]))
        if outcome is not None:
            fits = float(outcome.verdict.fits)
            if outcome.measurement is not None:
                peak = Prediction(*[outcome.measurement.peaks.device_bytes] * 3)
        one_s = step_cost_for(1.0, candidate, workload, options.search.objective)
        assert isinstance(predictor.memory, MemoryModel)  # plans are for models
        found.append(Expected(
            candidate=candidate,
            engine=engine.name,
            gpus=ranks,
            grad_accum=accum,
            global_batch=samples,
            peak=peak,
            parts=_parts(space, predictor.memory, place, stay=stay),
            host_bytes=hosts.predict(place).bytes,
            chance=fits,
            limited_by="host" if host_chance[place] < chance[place] else "device",
            step_s=(step_s[0], step_s[1], step_s[2]),
            tokens_per_s=(tokens / step_s[2], tokens / step_s[1], tokens / step_s[0]),
            traffic_bytes=(1 - 1 / ranks) * engine.sent_bytes(workload, candidate),
            value=one_s / step_s[1],
            weighed=outcome is not None,
        ))  # fmt: skip
    return found


def _parts(space: Space, memory: MemoryModel, place: int, *, stay: bool) -> Parts:
    """Parts of the median peak. A correction by measurements is spread over all of them."""
    candidate, workload = space.candidates[place], space.workload
    engine = engine_of(workload, candidate)
    state, found = engine.state(workload, candidate), memory.parts
    with_unused = float(found.blocks[place] + found.head[place])
    over = with_unused / (1 + unused(workload, candidate))
    if stay or candidate.zero_stage > 0:
        gradients = min(state.gradients, over)
    else:  # gradients come as activations go
        gradients = over - before_gradients(workload, candidate, over, state.gradients)
    buffers = min(engine.passing_bytes(workload, candidate, KIND), over - gradients)
    rest = over - gradients - buffers
    head = float(found.head[place]) / with_unused
    whole = float(found.base[place] + found.state[place]) + with_unused
    more = memory.predict(place).bytes / whole
    return Parts(
        parameters=more * state.weights,
        gradients=more * gradients,
        optimizer=more * state.optimizer,
        activations=more * rest * (1 - head),
        logits=more * rest * head,
        buffers=more * buffers,
        unused=more * (with_unused - over),
        outside=more * float(found.base[place]),
    )


@dataclass(frozen=True)
class Largest:
    """The largest micro_batch of one build and length."""

    row: Expected
    """The row of the largest that likely fits, else of the largest that may, else the smallest."""
    may: int | None


def largest(rows: Sequence[Expected]) -> list[Largest]:
    """The largest micro_batch of each build and length, below those weighed as too large."""
    alike: dict[object, list[Expected]] = {}
    for row in rows:  # ascending in micro_batch
        alike.setdefault((row.candidate.build, row.candidate.seq_len), []).append(row)
    found = []
    for same in alike.values():
        over = next((n for n, row in enumerate(same) if row.weighed and not row.fits), len(same))
        each = same[: max(1, over)]
        fitting = [row for row in each if row.fits]
        possible = [row for row in each if row.may_fit]
        found.append(Largest(
            row=(fitting or possible or each[:1])[-1],
            may=possible[-1].candidate.micro_batch if possible else None,
        ))  # fmt: skip
    return found
