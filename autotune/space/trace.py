"""Memory of plain training steps from traces of shallow models: what to ask, and what it means.

What a step holds at any one moment grows evenly with the blocks of each kind: traces of a model
with one of each, and of those with one more of a kind, give every depth.
Source: probes/describe.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autotune.space.arrays import Array
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import BYTES, engine_of
from autotune.space.models import FAMILIES
from autotune.space.models.checkpointed import recomputed_share
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.helpers import Describe, Described

MOST_MICRO_BATCHES = 17
"""Of a longer axis so many are asked for, evenly spread; between them peaks are interpolated."""


Traits = tuple[str, str, str, str]
"""Checkpointing, attention, loss and what weights are: what of a build changes what a model holds
for its backward pass."""


def _traits_of(of: Candidate | Build, workload: Workload) -> Traits:
    return of.checkpointing, of.attention, of.loss, _weights(of, workload)


def _weights(of: Candidate | Build, workload: Workload) -> str:
    """What they are while a block computes; those of fp16 are as large as those of bf16."""
    seen = engine_of(workload, of).computes_with(workload.dtype, of)
    return "bf16" if seen == "fp16" else seen


def _traits(space: Space, device_kind: str) -> list[Build]:
    """One build for each combination of traits that a candidate has, or that its blocks have; but
    for checkpoints on the host: what is not on the device cannot be told apart in a trace."""
    workload = space.workload
    if FAMILIES[workload.family].untraced(workload.recipe, device_kind):
        return []
    found = {
        _traits_of(alike, space.workload): alike
        for build in space.builds if build.checkpointing != "host"
        for kind in _shares(build.checkpointing, build.depth)
        for alike in [replace(build, checkpointing=kind)]
    }  # fmt: skip
    return list(found.values())


def _shares(checkpointing: str, depth: int) -> dict[str, float]:
    """Of the blocks of a model: how many are checkpointed in which way. Shallow models would not
    show that every second block is."""
    if "/" not in checkpointing:
        return {checkpointing: 1.0}
    full = recomputed_share(checkpointing, depth)
    return {"none": 1 - full, "full": full}


def _looked_at(space: Space) -> tuple[int, ...]:
    """The lengths to trace."""
    workload = space.workload
    lengths = sorted(set(space.axes["seq_len"]))
    return FAMILIES[workload.family].looked_at(workload.recipe, lengths)


def _as_at(lengths: Sequence[int], candidate: Candidate) -> float:
    """The micro_batch that has as many tokens at the one of `lengths` that is traced for it."""
    if candidate.seq_len in lengths:
        return candidate.micro_batch
    return candidate.tokens / lengths[-1]


def request(space: Space, device_kind: str = "cpu") -> Describe:
    """What to trace for `space`: every width and all traits, shallow and compiled by
    nothing. No models where a trace would tell nothing."""
    workload = space.workload
    widths = {workload.shape(depth).width: depth for depth in space.axes["depth"]}
    asked = [
        (replace(model, compile="off"), build)
        for _, deep in sorted(widths.items())
        for build in _traits(space, device_kind)
        for model in workload.shallow(build, wide_as=deep)
    ]
    lengths = _looked_at(space)
    sizes = sorted({round(_as_at(lengths, c)) for c in space.candidates})
    spread = np.linspace(0, len(sizes) - 1, min(len(sizes), MOST_MICRO_BATCHES))
    return Describe(
        models=[model for model, _ in asked],
        weights=[_weights(build, workload) for _, build in asked],
        seq_lens=list(lengths),
        micro_batches=[sizes[round(place)] for place in spread],
        dtype=workload.dtype,
        # That of 8 bits compiles its step, which tensors without data cannot.
        optimizer="muon" if space.candidates[0].optimizer == "muon" else "adamw",
        device_kind=device_kind,
        gradients_stay=workload.world_size > 1
        or any((workload.grad_accum(c) or 1) > 1 for c in space.candidates),
    )


def why_untraced(space: Space, device_kind: str) -> str:
    """Why a request for `space` has no models."""
    workload = space.workload
    why = FAMILIES[workload.family].untraced(workload.recipe, device_kind)
    return why or "what is kept on the host cannot be told apart in one"


@dataclass(frozen=True)
class Trace:
    """Traced bytes, extended to full depth. Arrays have one value for each candidate of a space,
    in its order, as if it were of stage 0 without offload; NaN where the model was not traced."""

    asked: Describe
    answer: Described

    def covers(self, space: Space, candidate: Candidate) -> bool:
        """Whether a model of which `candidate` is one was asked for, at its length."""
        kind, *more = _traits_of(candidate, space.workload)
        width = space.workload.shape(candidate.depth).width
        traced = all(
            (width, (each, *more)) in self._places for each in _shares(kind, candidate.depth)
        )
        known = self.asked.seq_lens
        reached = candidate.seq_len in known or tuple(known) == _looked_at(space)
        return traced and reached and candidate.seq_len >= min(known)

    def held(self, space: Space) -> Array:
        """Bytes between steps: weights, optimizer state, and gradients that stay."""
        held = np.empty(len(space.candidates))
        for (depth, _, traits), where in _curves(space).items():
            held[where] = self._deep(space, depth, traits, self._held)
        return held

    def peaks(self, space: Space) -> Array:
        """Bytes at the peak of a whole step."""
        peaks = np.empty(len(space.candidates))
        known = self.asked.seq_lens
        sizes = np.array([_as_at(known, c) for c in space.candidates])
        for (depth, seq_len, traits), where in _curves(space).items():
            length = known.index(seq_len) if seq_len in known else -1
            # A deep model may peak elsewhere than shallow ones, so each moment is looked at.
            update = self._deep(space, depth, traits, self._updates)
            found = [
                self._along_sizes(sizes[where], self._deep(space, depth, traits, at[:, length]))
                for at in self._peaks
            ]
            peaks[where] = np.max([*found, np.broadcast_to(update, len(where))], axis=0)
        return peaks

    def over_state(self, space: Space) -> Array:
        """Bytes at the peak over weights and optimizer state: activations, temporaries, and
        gradients, whether they stay between steps or not."""
        over = self.peaks(space) - self.held(space)
        if self.asked.gradients_stay:
            over += [
                BYTES[_weights(c, space.workload)] * space.workload.shape(c.depth).trainable
                for c in space.candidates
            ]
        return over

    def _along_sizes(self, sizes: Array, traced: Array) -> Array:
        """`traced` has the values at the traced micro_batches; lines between and beyond them."""
        known = np.array(self.asked.micro_batches, dtype=float)
        if len(known) == 1:
            return np.full(len(sizes), traced[0])
        left = np.clip(np.searchsorted(known, sizes) - 1, 0, len(known) - 2)
        slopes = np.diff(traced) / np.diff(known)
        along: Array = traced[left] + slopes[left] * (sizes - known[left])
        return along

    def _deep(self, space: Space, depth: int, traits: Traits, of_shallow: Array) -> Array:
        """What a model of `depth` has of what shallow ones have, which are the first axis."""
        kind, attention, loss, weights = traits
        width = space.workload.shape(depth).width
        shares = np.array(space.workload.shares(depth))
        deep: Array = np.zeros(())
        for each, share in _shares(kind, depth).items():
            models = self._places[width, (each, attention, loss, weights)]
            deep = deep + share * np.tensordot(shares, of_shallow[models], 1)
        return deep

    @cached_property
    def _places(self) -> dict[tuple[int, Traits], list[int]]:
        """Where the shallow models of a width stand."""
        found: dict[tuple[int, Traits], list[int]] = defaultdict(list)
        for place, (m, weights) in enumerate(
            zip(self.asked.models, self.asked.weights, strict=True)
        ):
            found[m.width, (m.checkpointing, m.attention, m.loss, weights)].append(place)
        return found

    @cached_property
    def _held(self) -> Array:
        return _known(self.answer.held_bytes)

    @cached_property
    def _updates(self) -> Array:
        return _known(self.answer.update_bytes)

    @cached_property
    def _peaks(self) -> list[Array]:
        found = self.answer
        split = (found.early_bytes, found.late_bytes)  # a recording may lack them
        return [_known(each) for each in (split if found.early_bytes else (found.peak_bytes,))]


def _curves(space: Space) -> dict[tuple[int, int, Traits], list[int]]:
    """Where the candidates stand of one model and length."""
    found: dict[tuple[int, int, Traits], list[int]] = defaultdict(list)
    for place, c in enumerate(space.candidates):
        found[c.depth, c.seq_len, _traits_of(c, space.workload)].append(place)
    return found


def _known(values: object) -> Array:
    array = np.array(values, dtype=float)
    return np.where(array < 0, np.nan, array)
