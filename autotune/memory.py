"""Predicted peak bytes of every candidate: closed forms and a trace, corrected by measured peaks.

It orders and aims the search, and explains. It never rules a candidate out.

Sources: state as in `state.py`; activations grow with tokens, layer by layer, as in
arXiv 2205.05198 (section 4). The peak is either at the end of the forward pass, when all
activations are held, or at the end of the backward pass, when all gradients are: a hinge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.belief import Array, Belief, Beliefs, Codes, Term, Variant
from autotune.outcome import Outcome, Verdict
from autotune.shapes import GptShape
from autotune.space import Candidate, Space

_PROCESS_BYTES = {"cpu": 300 * 2**20, "cuda": 900 * 2**20}
"""Beside what the model takes: interpreter and libraries, or CUDA's context and workspaces."""
_BLOCK_FLOATS = 23
"""Floats a token and channel that a block keeps for its backward pass (probes/models/gpt.py)."""
_LOGIT_BYTES = 12
"""A token and vocabulary entry: logits, their log-softmax and its gradient, in fp32."""

# What the closed forms may be off by, as shares, before anything was measured.
_STATE_OFF = 0.4
_ACTIVATIONS_OFF = 0.3
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


class MemoryModel:
    """Peak bytes of one kind of memory for all candidates of a space."""

    def __init__(self, space: Space, kind: str) -> None:
        self._capacity_bytes = space.limits.capacity_bytes
        self._index = {candidate: i for i, candidate in enumerate(space.candidates)}
        state, blocks, head = _closed_forms(space)
        activations = blocks + head
        base = np.full(len(space.candidates), float(_PROCESS_BYTES[kind]))
        stage = codes([(c.zero_stage, c.offload) for c in space.candidates])
        checkpointing = codes([c.checkpointing for c in space.candidates])
        build = codes([c.build for c in space.candidates])
        cell = codes([(c.build, c.seq_len) for c in space.candidates])
        self._beliefs = Beliefs(base + state + activations, [
            Term(0.3 * base),
            Term(_STATE_OFF / 4 * state),
            Term(_STATE_OFF * state, group=stage),
            Term(_BUILD_OFF * (base + state), group=build),
            Term(_ACTIVATIONS_OFF * head),
            Term(_ACTIVATIONS_OFF * blocks),
            Term(_ACTIVATIONS_OFF * blocks, group=checkpointing),
            Term(_ACTIVATIONS_OFF / 2 * activations, group=build),
            Term(_BUILD_OFF * activations, group=cell),
        ], _VARIANTS)  # fmt: skip

    def observe(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from a measured peak, or from the fact that memory ran out."""
        i = self._index[candidate]
        if outcome.measurement is not None:
            peak = float(outcome.measurement.peaks.device_bytes)
            self._beliefs.observe(i, peak, float(_noise(peak)) ** 2)
        elif outcome.verdict == Verdict.OOM:
            # The peak is over the capacity; nobody saw how far.
            at_least = (1 + _OOM_BEYOND) * self._capacity_bytes
            if self._belief.mean[i] < at_least:
                self._beliefs.observe(i, at_least, (_OOM_BEYOND * self._capacity_bytes) ** 2)

    @property
    def _belief(self) -> Belief:
        return self._beliefs.likely[1]

    def predict(self, candidate: Candidate) -> Prediction:
        i = self._index[candidate]
        mean = float(self._belief.mean[i])
        off = _Z95 * float(np.hypot(self._belief.deviation[i], _noise(mean)))
        return Prediction(
            int(max(0.0, mean)), int(max(0.0, mean - off)), int(max(0.0, mean + off))
        )

    def chance_within(self, limit_bytes: int) -> Array:
        """Probability of each candidate that its measured peak is at most `limit_bytes`."""
        mean = self._belief.mean
        return normal_cdf((limit_bytes - mean) / np.hypot(self._belief.deviation, _noise(mean)))


def _noise(peak: Array | float) -> Array:
    return np.asarray(_NOISE * np.abs(peak) + _NOISE_BYTES)


def _closed_forms(space: Space) -> tuple[Array, Array, Array]:
    """Bytes of the state between steps, and of what blocks and head hold at the peak beside it."""
    state, blocks, head = [], [], []
    for c in space.candidates:
        held = space.workload.state_bytes(c)
        shape = space.workload.shape(c.depth)
        kept = c.tokens * block_bytes(shape, c.checkpointing, space.workload.dtype)
        logits = c.tokens * float(_LOGIT_BYTES * shape.vocab_size)
        # The hinge: gradients come as activations go.
        more = max(1.0, held.gradients / (kept + logits))
        state.append(held.weights + held.optimizer)
        blocks.append(more * kept)
        head.append(more * logits)
    return np.array(state), np.array(blocks), np.array(head)


def block_bytes(shape: GptShape, checkpointing: str, dtype: str) -> float:
    """What all blocks of the `gpt` model keep of a token for the backward pass, roughly."""
    one = float(_BLOCK_FLOATS * shape.width * (4 if dtype == "fp32" else 2))
    return (
        one * shape.depth if checkpointing == "none" else one * (1 + shape.depth / _BLOCK_FLOATS)
    )


def codes(values: Sequence[object]) -> Codes:
    """A number for each distinct value, in order of appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp)


def normal_cdf(z: Array) -> Array:
    """Of the standard normal. Source: Abramowitz & Stegun (1964), 26.2.17; error under 1e-7."""
    t = 1 / (1 + 0.2316419 * np.abs(z))
    tail = (
        np.exp(-(z**2) / 2)
        / np.sqrt(2 * np.pi)
        * t
        * (
            0.319381530
            + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
        )
    )
    return np.asarray(np.where(z >= 0, 1 - tail, tail))
