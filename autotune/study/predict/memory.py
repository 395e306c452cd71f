"""Predicted peak bytes of every candidate: closed forms and a trace, corrected by measured peaks.

It orders and aims the search, and explains. It never rules a candidate out.

Sources: state as in `space/engines/engine.py`; activations grow with tokens, layer by layer, as in
arXiv 2205.05198 (section 4). The peak is a hinge: all activations are held when the forward pass
ends, or all gradients when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array, Codes
from autotune.space.axes import ASKED_AXES, PADDING_AXES
from autotune.space.candidate import Candidate
from autotune.space.degrees import shares
from autotune.space.engines import BYTES, engine_of, state_bytes
from autotune.space.workload import Workload
from autotune.study.predict.belief import Belief, Beliefs, Term, Variant, codes, normal_cdf
from autotune.wire.recipe import LOSS_CHUNKS

_PROCESS_BYTES = {"cpu": 340 * 2**20, "cuda": 900 * 2**20}
"""Bytes of a process without its model: interpreter and libraries, or CUDA's context."""
_FAMILY_BYTES = {"hf": 70 * 2**20}
"""Bytes that importing transformers adds, on the CPU."""
_BUILDING_BYTES = 44 * 2**20
"""Bytes between the imports and the model: threads, arenas, the process group."""
_COMPILED_KEEPS = 0.8
"""The share of activations that compiling leaves on a GPU. Source: torchtitan's and
lightning-thunder's published peaks with and without it (results/public)."""
_COMPILED_BYTES = {"cpu": 80 * 2**20, "cuda": 0}
"""Bytes of the compiler and its results, in a process that has compiled its blocks."""
_HOST_BYTES = 4 * 2**30
"""Host memory of a rank with a CUDA device: libraries, the driver's and pinned buffers."""

# Deviations of the parts, as shares, before anything was measured.
_BASE_OFF = 0.3
_MEASURED_BASE_OFF = 0.1
"""If a process with a rank's imports was measured."""
_STATE_OFF = 0.4
_OVER_OFF = 0.3
_BUILD_OFF = 0.05
_NOISE = 0.012
_NOISE_BYTES = 6 * 2**20
_WEIGHED_OFF = 0.01
"""For a peak that was weighed on emulated GPUs. 15 of 19 public training runs are within 0.1 %;
the rest, in other versions of torch, within 5 % (results/weighed.md)."""
_OOM_BEYOND = 0.04
"""If an allocation failed, the peak is assumed to be this much over the capacity."""
_Z95 = 1.96
_TRAITS = ("checkpointing", *(name for name in ASKED_AXES if name not in PADDING_AXES))
"""Axes whose values change, each in its own way, the memory at the peak beside the state."""
_VARIANTS = tuple(Variant(scale, noise) for scale in (1.0, 3.0, 10.0) for noise in (1.0, 3.0))


@dataclass(frozen=True)
class OutOf:
    """Stands for a peak: the memory ran out."""

    capacity_bytes: int


@dataclass(frozen=True)
class Within:
    """Stands for an unknown peak: it fitted."""

    capacity_bytes: int


@dataclass(frozen=True)
class Prediction:
    """Bytes at the peak: the median and an interval, 95 % by default."""

    bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class PeakParts:
    """Parts of the peak memory, in bytes: one value per point, in their order."""

    base: Array
    """Without the model."""
    state: Array
    """Held between steps."""
    blocks: Array
    """Held by the model's blocks at the peak, beside the state; checkpointing shrinks it."""
    head: Array
    """Held by its head, which checkpointing does not shrink."""

    def traced(self, over: Array, more_base: float) -> PeakParts:
        """These parts, corrected by a trace. `over` are the traced bytes at the peak beside the
        state; NaN where nothing was traced. `more_base` is added to the base."""
        more = np.where(np.isnan(over), 1.0, over / (self.blocks + self.head))
        return replace(
            self, base=self.base + more_base, blocks=more * self.blocks, head=more * self.head
        )


class MemoryModel:
    """Peak bytes of one kind of memory for all points."""

    def __init__(self, points: Sequence[Point], parts: PeakParts) -> None:
        self._groups = _Groups(
            workload=codes([workload for workload, _ in points]),
            engine=codes([engine_of(workload, c).name for workload, c in points]),
            stage=codes([(c.zero_stage, c.offload) for _, c in points]),
            traits=[codes([getattr(c, name) for _, c in points]) for name in _TRAITS],
            build=codes([(workload, c.build) for workload, c in points]),
            cell=codes([(workload, c.build, c.seq_len) for workload, c in points]),
            degrees=codes([(c.tp, c.pp, c.cp, c.ep, c.dp_shard) for _, c in points]),
        )
        self.parts = self._closed = parts
        """The parts before anything was measured."""
        self._beliefs = _beliefs(parts, self._groups, _BASE_OFF)
        self._seen: list[tuple[int, float | OutOf | Within, bool]] = []
        self._first = codes(points)
        """By place: the place of the first equal point."""
        self._weighed: dict[int, float] = {}
        self._off: list[float] = []
        """Measured peaks, as shares of the weighed ones."""

    def trace(self, over: Array, more_base: float) -> None:
        """Start from the trace instead; see `PeakParts.traced`. Observations are kept."""
        groups = replace(self._groups, workload=2 * self._groups.workload + np.isnan(over))
        self.parts = self._closed.traced(over, more_base)
        self._beliefs = _beliefs(
            self.parts, groups, _MEASURED_BASE_OFF if more_base else _BASE_OFF
        )
        seen, self._seen, self._off = self._seen, [], []
        for place, peak, weighed in seen:
            self.observe(place, peak, weighed=weighed)

    def observe(self, place: int, peak: float | OutOf | Within, *, weighed: bool = False) -> None:
        """Learn the peak in that `place`: bytes, or none if it ran out; maybe only `weighed`."""
        self._seen.append((place, peak, weighed))
        if isinstance(peak, Within):
            at_most = (1 - _OOM_BEYOND) * peak.capacity_bytes
            if self._beliefs.belief().mean[place] > at_most:
                noise = _OOM_BEYOND * peak.capacity_bytes
                self._beliefs.observe(place, at_most, noise**2)
            return
        first = int(self._first[place])
        if not isinstance(peak, OutOf):
            noise = float(np.hypot(_noise(peak), weighed * _WEIGHED_OFF * peak))
            self._beliefs.observe(place, peak, noise**2)
            if weighed:
                self._weighed[first] = peak
            elif first in self._weighed:
                self._off.append(peak / self._weighed[first])
            return
        # The peak is over the capacity; nobody saw how far.
        at_least = (1 + _OOM_BEYOND) * peak.capacity_bytes
        if self._beliefs.belief().mean[place] < at_least:
            self._beliefs.observe(place, at_least, (_OOM_BEYOND * peak.capacity_bytes) ** 2)
        if self._weighed.get(first, at_least) < at_least:
            self._off.append(at_least / self._weighed[first])

    def predict(self, place: int, z: float = _Z95) -> Prediction:
        """The measured peak to expect in that `place`, with `z` standard deviations."""
        belief = self._belief()
        mean = float(belief.mean[place])
        off = z * float(np.hypot(belief.deviation[place], _noise(mean)))
        low, middle, high = (int(max(0.0, value)) for value in (mean - off, mean, mean + off))
        return Prediction(middle, low, high)

    def chance(self, limit_bytes: int) -> Array:
        """The probability of each point's measured peak to be within the limit."""
        belief = self._belief()
        off = np.hypot(belief.deviation, _noise(belief.mean))
        return normal_cdf((limit_bytes - belief.mean) / off)

    def _belief(self) -> Belief:
        """What is believed of the peaks: of weighed ones by their own, not by their neighbours'.
        Blocks that an allocator cannot use again are the same on a real device."""
        found = self._beliefs.belief()
        mean, deviation = found.mean.copy(), found.deviation.copy()
        for place, peak in self._weighed.items():
            mean[place] = peak * (1 + sum(self._off)) / (1 + len(self._off))
            deviation[place] = _WEIGHED_OFF * peak / np.sqrt(1 + len(self._off))
        return Belief(mean, deviation)


def more_base(process_bytes: int, family: str) -> float:
    """Bytes to add to a rank's assumed base on the CPU, by what a bare process holds."""
    return float(process_bytes + _BUILDING_BYTES - _process_bytes(family, "cpu"))


def _process_bytes(family: str, device_kind: str) -> int:
    """Bytes of a process without a model. A family's library takes none on a GPU."""
    more = _FAMILY_BYTES.get(family, 0) if device_kind == "cpu" else 0
    return _PROCESS_BYTES[device_kind] + more


def device_memory(points: Sequence[Point], device_kind: str) -> MemoryModel:
    return MemoryModel(points, closed_forms(points, device_kind))


def host_memory(points: Sequence[Point], device_kind: str) -> MemoryModel:
    """The memory of all ranks on one host. On the CPU it is the devices' memory, too."""
    ranks = np.array([workload.ranks_on_a_node for workload, _ in points], dtype=float)
    if device_kind == "cpu":
        device = closed_forms(points, device_kind)
        parts = PeakParts(**{name: ranks * of_one for name, of_one in vars(device).items()})
    else:
        nothing = np.zeros(len(points))
        states = [state_bytes(workload, c) for workload, c in points]
        moved = np.array([state.host + state.passing for state in states])
        kept = np.array([kept_on_host(workload, c) for workload, c in points])
        parts = PeakParts(
            base=ranks * _HOST_BYTES,
            state=ranks * moved,
            blocks=ranks * kept,
            head=nothing,
        )
    return MemoryModel(points, parts)


def kept_on_host(workload: Workload, candidate: Candidate) -> float:
    """Bytes of blocks' inputs that one rank keeps in host memory, not on its device."""
    if candidate.checkpointing != "host":
        return 0.0
    shape = workload.shape(candidate.depth)
    number_bytes = 4 if workload.dtype == "fp32" else 2
    return float(candidate.tokens * shape.width * shape.depth * number_bytes)


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Numbers of the points: points with the same number share a deviation."""

    workload: Codes
    engine: Codes
    stage: Codes
    traits: list[Codes]
    build: Codes
    cell: Codes
    degrees: Codes


def _beliefs(parts: PeakParts, groups: _Groups, base_off: float) -> Beliefs:
    held, over = parts.base + parts.state, parts.blocks + parts.head
    several = [
        Term(_BUILD_OFF * parts.base, group=groups.workload),
        Term(_OVER_OFF / 2 * over, group=groups.workload),
    ]
    terms = [
        *(several if len(set(groups.workload)) > 1 else ()),
        Term(base_off * parts.base),
        Term(base_off / 2 * parts.base, group=groups.engine),
        Term(_BUILD_OFF * parts.base, group=groups.stage),
        *(
            Term(_BUILD_OFF * parts.base, group=group)
            for group in groups.traits[1:]
            if group.any()
        ),
        Term(_STATE_OFF / 4 * parts.state),
        Term(_STATE_OFF * parts.state, group=groups.stage),
        *(
            [Term(_STATE_OFF / 2 * parts.state, group=groups.degrees)]
            if groups.degrees.any()
            else ()
        ),
        Term(_BUILD_OFF * held, group=groups.build),
        Term(_OVER_OFF * parts.head),
        Term(_OVER_OFF * parts.blocks),
        *(
            Term(_OVER_OFF * parts.blocks, group=group)
            for group in groups.traits
            if group.any() or group is groups.traits[0]
        ),
        Term(_OVER_OFF / 2 * over, group=groups.build),
        Term(_BUILD_OFF * over, group=groups.cell),
    ]
    return Beliefs(held + over, terms, _VARIANTS)


def _noise(peak: Array | float) -> Array:
    return np.asarray(_NOISE * np.abs(peak) + _NOISE_BYTES)


def unused(workload: Workload, candidate: Candidate) -> float:
    """Unused bytes that torch reserves on a GPU: a share of the peak over model state."""
    plain, checkpointed = engine_of(workload, candidate).unused
    # Selective checkpointing had 13 to 21 % on an H200 (results/grids/h200-checkpointing.csv).
    between = {"none": plain, "selective": (plain + checkpointed) / 2}
    return between.get(candidate.checkpointing, checkpointed)


def on_rank(
    workload: Workload, candidate: Candidate, over: float, device_kind: str, *, stay: bool
) -> float:
    """Peak bytes of a rank of its engine over weights and optimizer state, with unused reserves.

    A plain step without sharing holds `over`; `stay` if it has all gradients throughout. On the
    CPU engines share tensors with the step, and closed forms have the rest.
    """
    if device_kind == "cpu":
        return over
    engine, shape = engine_of(workload, candidate), workload.shape(candidate.depth)
    whole = BYTES[engine.computes_with(workload.dtype, candidate)] * shape.trainable
    kept = over - whole if stay else before_gradients(workload, candidate, over, whole)
    spared = kept * (1 - _COMPILED_KEEPS) if candidate.compile == "on" else 0.0
    reserved = 1 + unused(workload, candidate)
    if candidate.zero_stage == 0:
        return reserved * (over - spared)
    return reserved * _at_peak(workload, candidate, kept - spared)


def before_gradients(
    workload: Workload, candidate: Candidate, over: float, gradients: float
) -> float:
    """The part of the hinge `over` that is held before the first of `gradients` bytes exists."""
    shape = workload.shape(candidate.depth)
    form = candidate.tokens * (
        shape.block_bytes(candidate.checkpointing, workload.dtype) + shape.head_bytes
    )
    return over * min(1.0, form / gradients)


def _at_peak(workload: Workload, candidate: Candidate, kept: float) -> float:
    """Peak bytes beside weights and optimizer state on a GPU, if activations take `kept`. It is at
    the end of the forward pass, or while the optimizer steps."""
    engine = engine_of(workload, candidate)
    passing = engine.passing_bytes(workload, candidate, "cuda")
    updating = engine.updating_bytes(workload, candidate)
    return engine.state(workload, candidate).gradients + max(kept + passing, updating)


def closed_forms(points: Sequence[Point], device_kind: str) -> PeakParts:
    base, state, blocks, head = [], [], [], []
    for workload, c in points:
        engine = engine_of(workload, c)
        held, of = engine.state(workload, c), shares(workload, c)
        shape = workload.shape(c.depth)
        kept = c.tokens * shape.block_bytes(c.checkpointing, workload.dtype)
        logits = c.tokens * shape.head_bytes
        kept, logits = of.blocks * kept, of.head * logits
        if c.loss == "chunked":
            logits /= LOSS_CHUNKS
        if device_kind == "cuda" and c.compile == "on":
            kept, logits = kept * _COMPILED_KEEPS, logits * _COMPILED_KEEPS
        # The hinge: gradients come as activations go. On the CPU offload moves none elsewhere.
        here = replace(c, offload="none") if device_kind == "cpu" else c
        gradients = of.state * engine.state(workload, here).gradients
        more = max(1.0, gradients / (kept + logits))
        passing = engine.passing_bytes(workload, c, device_kind) if device_kind == "cpu" else 0.0
        if device_kind == "cuda" and c.zero_stage:
            more = _at_peak(workload, c, kept + logits) / (kept + logits)
        if device_kind == "cuda":
            more *= 1 + unused(workload, c)
        on_host = held.host + held.passing if device_kind == "cpu" else 0.0
        compiled = _COMPILED_BYTES[device_kind] if c.compile == "on" else 0
        family = "" if workload.of_script else workload.family
        process = _process_bytes(family, device_kind)
        base.append(process + engine.library_bytes(device_kind) + compiled)
        state.append(of.state * (held.weights + held.optimizer + on_host + passing))
        blocks.append(more * kept)
        head.append(more * logits)
    return PeakParts(
        base=np.array(base, dtype=float),
        state=np.array(state),
        blocks=np.array(blocks),
        head=np.array(head),
    )
