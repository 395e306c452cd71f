"""Predicted peak bytes of every candidate: closed forms and a trace, corrected by measured peaks.

It orders and aims the search, and explains. It never rules a candidate out.

Sources: state as in `engines/engine.py`; activations grow with tokens, layer by layer, as in
arXiv 2205.05198 (section 4). The peak is either at the end of the forward pass, when all
activations are held, or at the end of the backward pass, when all gradients are: a hinge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from autotune.engines import engine_of, state_bytes
from autotune.outcome import Outcome, Verdict
from autotune.predict.belief import Array, Beliefs, Codes, Term, Variant, codes, normal_cdf
from autotune.space.candidate import Candidate
from autotune.space.space import Space

_PROCESS_BYTES = {"cpu": 340 * 2**20, "cuda": 900 * 2**20}
"""Beside what the model takes: interpreter and libraries, or CUDA's context and workspaces."""
_BUILDING_BYTES = 44 * 2**20
"""Between the imports and the model: threads, arenas, the process group."""
_HOST_BYTES = 4 * 2**30
"""Of a rank that feeds a CUDA device: libraries, the driver's and pinned buffers."""

# What the parts may be off by, as shares, before anything was measured.
_BASE_OFF = 0.3
_STATE_OFF = 0.4
_OVER_OFF = 0.3
_BUILD_OFF = 0.05
_NOISE = 0.012
_NOISE_BYTES = 6 * 2**20
_OOM_BEYOND = 0.04
"""An allocation that failed: the peak would have been about this much over the capacity."""
_Z95 = 1.96
_VARIANTS = tuple(Variant(scale, noise) for scale in (1.0, 3.0, 10.0) for noise in (1.0, 3.0))


@dataclass(frozen=True)
class Prediction:
    """Bytes at the peak: the median and a 95 % interval."""

    bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class PeakParts:
    """What a peak is made of, in bytes: one value per candidate of a space, in its order."""

    base: Array
    """Beside what the model takes."""
    state: Array
    """Held between steps."""
    blocks: Array
    """Held beside that at the peak by the model's blocks, which checkpointing shrinks."""
    head: Array
    """And by its head, which it does not."""

    def traced(self, over: Array, more_base: float) -> PeakParts:
        """These parts where `over` is what a trace found at the peak beside the state; it is NaN
        for what was not traced. `more_base` is what the base is more than was taken for it."""
        more = np.where(np.isnan(over), 1.0, over / (self.blocks + self.head))
        return replace(
            self, base=self.base + more_base, blocks=more * self.blocks, head=more * self.head
        )


class MemoryModel:
    """Peak bytes of one kind of memory for all candidates of a space."""

    def __init__(self, space: Space, parts: PeakParts, part: Literal["device", "host"]) -> None:
        limits = space.limits
        self._part = part
        self._capacity_bytes = (
            limits.capacity_bytes if part == "device" else limits.host_capacity_bytes
        )
        self._limit_bytes = limits.limit_bytes if part == "device" else limits.host_limit_bytes
        self._index = {candidate: i for i, candidate in enumerate(space.candidates)}
        self._groups = _Groups(
            engine=codes([engine_of(space.workload, c).name for c in space.candidates]),
            stage=codes([(c.zero_stage, c.offload) for c in space.candidates]),
            checkpointing=codes([c.checkpointing for c in space.candidates]),
            build=codes([c.build for c in space.candidates]),
            cell=codes([(c.build, c.seq_len) for c in space.candidates]),
        )
        self._parts = parts
        self._beliefs = _beliefs(parts, self._groups)
        self._seen: list[tuple[Candidate, Outcome]] = []

    def trace(self, over: Array, more_base: float) -> None:
        """Start from what was traced instead; what was observed is kept. See `PeakParts`."""
        self._beliefs = _beliefs(self._parts.traced(over, more_base), self._groups)
        seen, self._seen = self._seen, []
        for candidate, outcome in seen:
            self.observe(candidate, outcome)

    def observe(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from a measured peak, or from the fact that memory ran out."""
        self._seen.append((candidate, outcome))
        i = self._index[candidate]
        if outcome.measurement is not None:
            peaks = outcome.measurement.peaks
            peak = float(peaks.device_bytes if self._part == "device" else peaks.host_bytes)
            self._beliefs.observe(i, peak, float(_noise(peak)) ** 2)
        elif outcome.verdict == Verdict.OOM and self._part == "device":
            # The peak is over the capacity; nobody saw how far.
            at_least = (1 + _OOM_BEYOND) * self._capacity_bytes
            if self._beliefs.belief().mean[i] < at_least:
                self._beliefs.observe(i, at_least, (_OOM_BEYOND * self._capacity_bytes) ** 2)

    def predict(self, candidate: Candidate) -> Prediction:
        """The peak of `candidate` as it would be measured."""
        i, belief = self._index[candidate], self._beliefs.belief()
        mean = float(belief.mean[i])
        off = _Z95 * float(np.hypot(belief.deviation[i], _noise(mean)))
        low, middle, high = (int(max(0.0, value)) for value in (mean - off, mean, mean + off))
        return Prediction(middle, low, high)

    def chance(self) -> Array:
        """Probability of each candidate that its measured peak keeps within the limit."""
        belief = self._beliefs.belief()
        off = np.hypot(belief.deviation, _noise(belief.mean))
        return normal_cdf((self._limit_bytes - belief.mean) / off)


def more_base(process_bytes: int) -> float:
    """What a rank's base on the CPU is more than was taken for it, where a process that only
    imports what a rank imports holds `process_bytes`."""
    return float(process_bytes + _BUILDING_BYTES - _PROCESS_BYTES["cpu"])


def device_memory(space: Space, device_kind: str) -> MemoryModel:
    """Of a rank's device."""
    return MemoryModel(space, closed_forms(space, device_kind), "device")


def host_memory(space: Space, device_kind: str) -> MemoryModel:
    """Of all ranks on the host. On the CPU it is the devices'."""
    ranks = space.workload.world_size
    if device_kind == "cpu":
        device = closed_forms(space, device_kind)
        parts = PeakParts(
            base=ranks * device.base,
            state=ranks * device.state,
            blocks=ranks * device.blocks,
            head=ranks * device.head,
        )
    else:
        nothing = np.zeros(len(space.candidates))
        states = [state_bytes(space.workload, c) for c in space.candidates]
        moved = np.array([ranks * (state.host + state.passing) for state in states])
        parts = PeakParts(
            base=np.full_like(nothing, ranks * _HOST_BYTES),
            state=moved,
            blocks=nothing,
            head=nothing,
        )
    return MemoryModel(space, parts, "host")


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """What shares a deviation."""

    engine: Codes
    stage: Codes
    checkpointing: Codes
    build: Codes
    cell: Codes


def _beliefs(parts: PeakParts, groups: _Groups) -> Beliefs:
    held, over = parts.base + parts.state, parts.blocks + parts.head
    terms = [
        Term(_BASE_OFF * parts.base),
        Term(_BASE_OFF / 2 * parts.base, group=groups.engine),
        Term(_BUILD_OFF * parts.base, group=groups.stage),
        Term(_STATE_OFF / 4 * parts.state),
        Term(_STATE_OFF * parts.state, group=groups.stage),
        Term(_BUILD_OFF * held, group=groups.build),
        Term(_OVER_OFF * parts.head),
        Term(_OVER_OFF * parts.blocks),
        Term(_OVER_OFF * parts.blocks, group=groups.checkpointing),
        Term(_OVER_OFF / 2 * over, group=groups.build),
        Term(_BUILD_OFF * over, group=groups.cell),
    ]
    return Beliefs(held + over, terms, _VARIANTS)


def _noise(peak: Array | float) -> Array:
    return np.asarray(_NOISE * np.abs(peak) + _NOISE_BYTES)


def closed_forms(space: Space, device_kind: str) -> PeakParts:
    """The parts by formula."""
    base, state, blocks, head = [], [], [], []
    for c in space.candidates:
        engine = engine_of(space.workload, c)
        held = engine.state(space.workload, c)
        shape = space.workload.shape(c.depth)
        kept = c.tokens * shape.block_bytes(c.checkpointing, space.workload.dtype)
        logits = c.tokens * shape.head_bytes
        # The hinge: gradients come as activations go.
        more = max(1.0, held.gradients / (kept + logits))
        copies = engine.gradient_copies(c.zero_stage) * 4.0 * shape.parameters
        on_host = held.host + held.passing if device_kind == "cpu" else 0.0
        base.append(_PROCESS_BYTES[device_kind] + engine.library_bytes(device_kind))
        state.append(held.weights + held.optimizer + on_host + copies)
        blocks.append(more * kept)
        head.append(more * logits)
    return PeakParts(
        base=np.array(base, dtype=float),
        state=np.array(state),
        blocks=np.array(blocks),
        head=np.array(head),
    )
