"""Memory of plain training steps from traces of shallow models: the request, and its use.

The memory of a step at any moment is linear in the number of blocks of each kind. One trace is of
a model with one block of each kind, others have one more of a kind. Together they give every
depth.
Source: probes/describe.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.space.arrays import Array
from autotune.space.candidate import Build, Candidate
from autotune.space.engines import BYTES, engine_of
from autotune.space.models import FAMILIES
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.helpers import Describe, Described
from autotune.wire.ranks import ModelSpec

MOST_MICRO_BATCHES = 17
"""The most micro-batches to trace, evenly spread; peaks between them are interpolated."""


Traits = tuple[str, str, str, str, str]
"""What decides, beside the depth, how much a model keeps for its backward pass."""


def _traits_of(of: Candidate | Build, workload: Workload) -> Traits:
    return of.checkpointing, of.attention, of.loss, _weights(of, workload), of.base


def _weights(of: Candidate | Build, workload: Workload) -> str:
    """The dtype of the weights while a block computes; fp16 is as large as bf16."""
    seen = engine_of(workload, of).computes_with(workload.dtype, of)
    return "bf16" if seen == "fp16" else seen


def _models(workload: Workload, of: Candidate | Build) -> list[ModelSpec]:
    """The shallow models of a build, with its traits and dtype of weights, not compiled."""
    checkpointing, attention, loss, weights, base = _traits_of(of, workload)
    plain = Build(
        depth=of.depth, checkpointing=checkpointing, attention=attention, loss=loss,
        # As recorded traces name what is plain.
        param_dtype="auto" if (weights, base) == ("fp32", "auto") else weights, base=base,
    )  # fmt: skip
    return workload.shallow(plain)


def _looked_at(space: Space) -> tuple[int, ...]:
    workload = space.workload
    lengths = sorted(set(space.axes["seq_len"]))
    return FAMILIES[workload.family].looked_at(workload.recipe, lengths)


def _as_at(lengths: Sequence[int], candidate: Candidate) -> float:
    """The micro_batch with as many tokens at the traced one of `lengths`."""
    if candidate.seq_len in lengths:
        return candidate.micro_batch
    return candidate.tokens / lengths[-1]


def request(space: Space, device_kind: str = "cpu") -> Describe:
    """The request of a trace for `space`: every width and all traits, shallow and not compiled. It
    has no models if a trace would show nothing."""
    workload = space.workload
    asked: dict[str, ModelSpec] = {}
    # A trace cannot tell which checkpoints are on the host.
    builds = [build for build in space.builds if build.checkpointing != "host"]
    if not FAMILIES[workload.family].untraced(workload.recipe, device_kind):
        alike = {(build.depth, _traits_of(build, workload)): build for build in builds}
        for _, build in sorted(alike.items(), key=lambda each: each[0][0]):
            asked |= {repr(each): each for each in _models(workload, build)}
    lengths = _looked_at(space)
    sizes = sorted({round(_as_at(lengths, c)) for c in space.candidates})
    spread = np.linspace(0, len(sizes) - 1, min(len(sizes), MOST_MICRO_BATCHES))
    return Describe(
        models=list(asked.values()),
        seq_lens=list(lengths),
        micro_batches=[sizes[round(place)] for place in spread],
        dtype=workload.dtype,
        # The 8-bit optimizer compiles its step, which tensors without data cannot.
        optimizer="muon" if space.candidates[0].optimizer == "muon" else "adamw",
        device_kind=device_kind,
        gradients_stay=workload.world_size > 1
        or any((workload.grad_accum(c) or 1) > 1 for c in space.candidates),
    )


def why_untraced(space: Space, device_kind: str) -> str:
    """Why a request for `space` has no models."""
    workload = space.workload
    why = FAMILIES[workload.family].untraced(workload.recipe, device_kind)
    return why or "a trace cannot tell which tensors are kept on the host"


@dataclass(frozen=True)
class Trace:
    """Traced bytes, extended to full depth, as if in stage 0 without offload. Arrays have one
    value for each candidate of a space, in its order; NaN if the model was not traced."""

    asked: Describe
    answer: Described

    def covers(self, space: Space, candidate: Candidate) -> bool:
        """Whether the request has its models at its length."""
        known = self.asked.seq_lens
        reached = candidate.seq_len in known or tuple(known) == _looked_at(space)
        traced = None not in self._places(space.workload, candidate)
        return traced and reached and candidate.seq_len >= min(known)

    def held(self, space: Space) -> Array:
        """Bytes between steps: weights, optimizer state, and gradients that stay."""
        held = np.empty(len(space.candidates))
        known = _known([each.held_bytes for each in self.answer.models])
        for where in _curves(space):
            held[where] = self._deep(space, where[0], known)
        return held

    def peaks(self, space: Space) -> Array:
        """Bytes at the peak of a whole step."""
        peaks = np.empty(len(space.candidates))
        known = self.asked.seq_lens
        sizes = np.array([_as_at(known, c) for c in space.candidates])
        updates = _known([each.update_bytes for each in self.answer.models])
        for where in _curves(space):
            seq_len = space.candidates[where[0]].seq_len
            length = known.index(seq_len) if seq_len in known else -1
            # A deep model may peak at another moment than shallow ones, so all moments count.
            update = self._deep(space, where[0], updates)
            found = [
                self._along_sizes(sizes[where], self._deep(space, where[0], at[:, length]))
                for at in self._peaks
            ]
            peaks[where] = np.max([*found, np.broadcast_to(update, len(where))], axis=0)
        return peaks

    def over_state(self, space: Space) -> Array:
        """Bytes at the peak over weights and optimizer state: activations, gradients, others."""
        over = self.peaks(space) - self.held(space)
        if self.asked.gradients_stay:
            over += [
                BYTES[_weights(c, space.workload)] * space.workload.shape(c.depth).trainable
                for c in space.candidates
            ]
        return over

    def _along_sizes(self, sizes: Array, traced: Array) -> Array:
        """Values at `sizes`, on lines through the `traced` values at the traced micro_batches."""
        known = np.array(self.asked.micro_batches, dtype=float)
        if len(known) == 1:
            return np.full(len(sizes), traced[0])
        left = np.clip(np.searchsorted(known, sizes) - 1, 0, len(known) - 2)
        slopes = np.diff(traced) / np.diff(known)
        along: Array = traced[left] + slopes[left] * (sizes - known[left])
        return along

    def _deep(self, space: Space, place: int, of_shallow: Array) -> Array:
        """The value of the candidate in that `place`; `of_shallow` is [shallow model][...]."""
        c = space.candidates[place]
        shares = np.array(space.workload.shares(c.depth, c.checkpointing))
        places = np.array(self._places(space.workload, c), dtype=int)
        deep: Array = np.tensordot(shares, of_shallow[places], 1)
        return deep

    def _places(self, workload: Workload, candidate: Candidate) -> list[int | None]:
        """Places of the shallow models of `candidate`; None for one that was not requested."""
        key = candidate.depth, _traits_of(candidate, workload)
        if key not in self._found:
            self._found[key] = [
                self._asked.get(repr(each)) for each in _models(workload, candidate)
            ]
        return self._found[key]

    @cached_property
    def _found(self) -> dict[object, list[int | None]]:
        """Indices of shallow models by depth and traits."""
        return {}

    @cached_property
    def _asked(self) -> dict[str, int]:
        return {repr(each): place for place, each in enumerate(self.asked.models)}

    @cached_property
    def _peaks(self) -> list[Array]:
        traced = self.answer.models
        early, late = [each.early_bytes for each in traced], [each.late_bytes for each in traced]
        return [_known(early), _known(late)]


def _curves(space: Space) -> list[list[int]]:
    """Places of the candidates of each model and length."""
    found: dict[object, list[int]] = defaultdict(list)
    for place, c in enumerate(space.candidates):
        found[c.depth, c.seq_len, _traits_of(c, space.workload)].append(place)
    return list(found.values())


def _known(values: object) -> Array:
    array = np.array(values, dtype=float)
    return np.where(array < 0, np.nan, array)
