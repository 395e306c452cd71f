"""Predicted step time of every candidate: a roofline shape, corrected by measured steps.

The prior knows shapes, not the device: fixed costs, work over a rate that saturates in tokens,
traffic of each ZeRO stage and of offload. Its error is learned in the logarithm, along tokens,
depth, length, stage and checkpointing. Sources: Williams et al., Roofline (CACM 2009); traffic
per stage from ZeRO (arXiv 1910.02054, section 7) and ZeRO-Offload (arXiv 2101.06840).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.result.earlier import Point
from autotune.space.arrays import Array
from autotune.space.axes import ASKED_AXES, AXES, DEGREES, PADDING_AXES
from autotune.space.candidate import Candidate
from autotune.space.degrees import bubble, sent_bytes, shares
from autotune.space.engines import BYTES
from autotune.space.models.checkpointed import recomputed_share
from autotune.space.traits import Trait, traits
from autotune.space.workload import Workload
from autotune.study.predict.belief import Belief, Beliefs, Off, Term, Variant, codes
from autotune.study.predict.fit import draws_of
from autotune.study.predict.mixture import Mixture
from autotune.study.predict.sweep import Sweep
from autotune.wire.recipe import LOSS_CHUNKS
from autotune.wire.stopping import Interval


@dataclass(frozen=True, kw_only=True)
class Magnitudes:
    """Orders of magnitude of a device; measurements decide."""

    flops_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """Between ranks."""
    host_bytes_per_s: float
    """Between device and host."""
    host_adam_bytes_per_s: float
    """Rate at which the host updates optimizer state."""
    fixed_s: float
    """Seconds of a micro-step without any work."""
    block_s: float
    """Seconds of a block without any work, forward and backward."""
    half_rate_tokens: float
    """Tokens of a micro-step at which half the rate is reached."""
    half_rate_width: float
    """Channels of the model at which half of that rate is reached."""
    noise: float
    """Deviation between measurements in different groups, in the logarithm."""
    power_w: float
    """Power of a device while it trains."""
    power_noise: float
    """Deviation of a measured mean power, in the logarithm."""


MAGNITUDES = {
    "cpu": Magnitudes(
        flops_per_s=2e11,
        memory_bytes_per_s=1e10,
        link_bytes_per_s=1e9,
        host_bytes_per_s=1e10,
        host_adam_bytes_per_s=1e10,
        fixed_s=2e-3,
        block_s=5e-4,
        half_rate_tokens=60.0,
        half_rate_width=100.0,
        noise=0.03,
        power_w=100.0,
        power_noise=0.02,
    ),
    "cuda": Magnitudes(
        flops_per_s=3e14,
        memory_bytes_per_s=2e12,
        link_bytes_per_s=1e11,
        host_bytes_per_s=2e10,
        host_adam_bytes_per_s=2e10,
        fixed_s=3e-3,
        block_s=6e-4,
        half_rate_tokens=1500.0,
        half_rate_width=800.0,
        noise=0.008,
        power_w=400.0,
        power_noise=0.02,
    ),
}


DRIFT = Off("finals", 0.05)
"""Finals come last, on a warm machine, in fresh groups. Together they are slower or faster than
the search by about so much, in the logarithm."""
BENT = 0.3
"""Error of a mix's steps, scaled from its longest samples, as a share of the factor's logarithm;
all are off together, by fixed costs and attention."""
ANOTHER_DAY = 0.1
"""The deviation between the measurements of two studies, in the logarithm."""
ANOTHER_SPACE = 10.0
"""A measurement of another candidate in another space counts with so many times its noise. With
less, earlier studies misled searches on recorded grids."""
_UNKNOWN_OFF = 1.5
"""Deviation of the speed of an unknown device, in the logarithm."""
_KNOWN_OFF = 0.4
"""The same for a device whose data sheet is known."""
_MODEL_OFF = 0.2
"""Deviation of the prior between two workloads."""

_SLOPE, _UNSIZED_SLOPE = 0.15, 0.3
"""Deviation of the prior along the logarithm of tokens; also of unknown samples."""
_UNSIZED_TOKENS = 16
"""Tokens that such a sample counts as. It may have 1, as an image, or thousands."""

_FACTORS = {
    ("attention", "eager"): 1.1,
    ("compile", "on"): 0.9,
    ("checkpointing", "selective"): 1.1,
}
"""Rough factors on the time of the work; measurements decide."""
_HEAD_PASSES = 7
"""Passes of a chunk of logits over the head's weights: it reads them three times, writes their
gradient, and adds it to that of earlier chunks."""
_ASKED_OFF = 0.1
"""Deviation of the effect of compiling, or of another attention, loss or optimizer."""

_VECTOR_OFF, _VECTOR_WIDTH = 0.4, 0.3
"""Deviation along the log ratio of ranks' micro-batches; beyond it times differ."""
_OWN_OFF = 0.2
"""The same for an axis of a script's own: of a word, or of a number along its logarithm."""
_OWN_SLOPE = 0.3


_ALONE_OFF = 0.1
"""Deviation of one recorded run from all that is expected of it."""
_RECORDED_OFF = 0.05
"""Of what a degree does beside what is expected of it, and of that along its logarithm."""

_VARIANTS = tuple(
    Variant(scale, noise, -0.5 * (scale > 1) - 0.5 * (noise > 1) - 0.5 * (noise > 3))
    for scale in (1.0, 2.0) for noise in (1.0, 3.0, 10.0)
)  # fmt: skip


class SpeedModel:
    """Seconds per optimizer step of all points, in the logarithm; or joules by the same prior."""

    def __init__(
        self,
        points: Sequence[Point],
        device_kind: str,
        known: Magnitudes | None = None,
        *,
        of_energy: bool = False,
    ) -> None:
        """`known` are the device's own magnitudes."""
        self._of_energy = of_energy
        self._count = len(points)
        self._beliefs: Beliefs | Mixture
        self._magnitudes = known or MAGNITUDES[device_kind]
        self.noise = self._magnitudes.noise
        ones = np.ones(len(points))
        tokens = np.log([c.tokens for _, c in points])
        width = np.log([workload.shape(c.depth).width * c.depth for workload, c in points])
        length = np.log([c.seq_len for _, c in points])
        middle = tokens - tokens.mean()
        workload = codes([workload for workload, _ in points])
        stage = codes([(c.zero_stage, c.offload) for _, c in points])
        skipped = {"own", *DEGREES}
        if not any(c.compiles for _, c in points):  # the effect of padding is then known
            skipped |= set(PADDING_AXES)
        asked = [
            codes([getattr(c, name) for _, c in points])
            for name in ASKED_AXES
            if name not in skipped
        ]
        own = [
            each for each in traits([c for _, c in points])
            if each.name not in AXES or each.name in DEGREES
        ]  # fmt: skip
        checkpointing = codes([c.checkpointing for _, c in points])
        build = codes([(workload, c.build) for workload, c in points])
        cell = codes([(workload, c.build, c.seq_len) for workload, c in points])
        unsized = np.array([_is_unsized(workload, c) for workload, c in points])
        prior = np.log([
            prior_s(workload, c, self._magnitudes) * workload.padded_share(c)
            + _compiling_s(workload, c)
            for workload, c in points
        ])  # fmt: skip
        if of_energy:
            ranks = np.array([workload.world_size for workload, _ in points])
            prior += np.log(self._magnitudes.power_w * ranks)
        effects = [
            *(Term(_ASKED_OFF * ones, group=group) for group in asked if group.any()),
            Term(0.1 * ones, group=checkpointing),
            *_of_vectors([c for _, c in points]),
        ]  # fmt: skip
        if points[0][0].recorded:
            # The last place is the work of a token on one device.
            beside = [
                *effects,
                *(term for trait in own for term in _of_recorded(trait)),
                Term(0.1 * ones, position=tokens / 1.5),
                Term(0.1 * ones, position=length / 1.0),
                Term(0.05 * ones, group=stage),
                Term(0.05 * ones, group=build),
            ]
            steps = tokens + Sweep(points).log_times(draws_of(len(points)))
            ranks = np.full((len(steps), 1), -math.log(points[0][0].world_size))
            self._beliefs = Mixture(
                np.append(steps, ranks, axis=1),
                [
                    Term(_UNKNOWN_OFF * np.append(ones, 1.0)),
                    *(_elsewhere(term) for term in beside),
                ],
                np.append(_ALONE_OFF * ones, 1e-6),
            )
            return
        several = [Term(_MODEL_OFF * ones, group=workload)] if workload.any() else []
        self._beliefs = Beliefs(prior, [
            *several,
            *effects,
            Term((_UNKNOWN_OFF if known is None else _KNOWN_OFF) * ones),
            Term(np.where(unsized, _UNSIZED_SLOPE, _SLOPE) * middle),
            Term(0.2 * ones, position=tokens / 1.5),
            Term(0.2 * ones, position=width / 0.8),
            Term(0.1 * ones, position=length / 1.0),
            *(term for trait in own for term in _of_own(trait)),
            Term(0.3 * ones, group=stage, position=tokens / 2.5),
            Term(0.08 * ones, group=build, position=tokens / 2.0),
            Term(0.08 * ones, group=cell, position=tokens / 0.4),
        ], _VARIANTS)  # fmt: skip

    @property
    def work(self) -> tuple[float, float]:
        """Of recorded runs, the log of a device's seconds for a token, and its deviation."""
        found = self._beliefs.belief()
        return float(found.mean[-1]), float(found.deviation[-1])

    def belief(self, pending: Sequence[int] = ()) -> Belief:
        """Belief of the logarithm; `pending` points count as measured as expected."""
        found = self._beliefs.belief(pending)
        return Belief(found.mean[: self._count], found.deviation[: self._count])

    def apart(self, place: int, pending: Sequence[int] = ()) -> Array:
        """Standard deviation of each point's difference to that in `place`, in the logarithm."""
        return self._beliefs.apart(place, pending)[: self._count]

    def observe(
        self, place: int, step: Interval, disturbed_share: float, off: Off | None = None
    ) -> None:
        """Learn the measured step times, or joules, of the point in that `place`."""
        noise = self._magnitudes.noise**2 + step.half_width**2 + (disturbed_share / 2) ** 2
        noise += off.alone**2 if off else 0.0
        if self._of_energy:
            noise += self._magnitudes.power_noise**2
        self._beliefs.observe(place, float(np.log(step.median)), noise, off)

    def joint(self, places: Sequence[int]) -> tuple[Array, Array]:
        """Mean and covariance of the logarithms of the points in these `places`."""
        return self._beliefs.joint(places)


def _elsewhere(term: Term) -> Term:
    """The term with one more place, which has none of it."""
    group = None if term.group is None else np.append(term.group, -1)
    position = None if term.position is None else np.append(term.position, 0.0)
    return Term(np.append(term.scale, 0.0), group, position)


def _of_vectors(candidates: Sequence[Candidate]) -> Iterator[Term]:
    """The effect of how unlike the ranks' micro-batches are: nobody knows the ranks' speeds."""
    ratios = np.log([c.vector[-1] / c.vector[0] if c.vector else 1.0 for c in candidates])
    if ratios.any():
        yield Term(_VECTOR_OFF * np.ones(len(candidates)), position=ratios / _VECTOR_WIDTH)


def _of_own(trait: Trait) -> Iterator[Term]:
    """The possible effects of an axis of a script's own, or of a degree."""
    ones = np.ones(len(trait.values))
    if trait.position is None:
        yield Term(_OWN_OFF * ones, group=trait.codes)
    else:
        yield Term(_OWN_SLOPE * trait.position)
        yield Term(_ASKED_OFF * ones, position=trait.position)


def _of_recorded(trait: Trait) -> Iterator[Term]:
    """The same in runs of others, where degrees do what is expected of them."""
    if trait.name not in DEGREES or trait.position is None:
        yield from _of_own(trait)
        return
    yield Term(_RECORDED_OFF * trait.position)
    yield Term(_RECORDED_OFF * np.ones(len(trait.values)), position=trait.position)


def _is_unsized(workload: Workload, candidate: Candidate) -> bool:
    """Whether the length of a script's samples is unknown."""
    return workload.of_script and candidate.seq_len == 1


def bent(workload: Workload, candidate: Candidate) -> Off | None:
    """The common error of steps that are scaled from a mix's longest samples; None without one."""
    if workload.length_mix is None:
        return None
    return Off("longest", -BENT * math.log(workload.padded_share(candidate)))


_SHAPE_S = 5.0
"""Seconds to compile a shape of a model."""


def _compiling_s(workload: Workload, candidate: Candidate) -> float:
    """Seconds of compiling per step, by order of magnitude, if shapes of a mix are compiled."""
    if workload.length_mix is None or candidate.compile == "off":
        return 0.0
    return _SHAPE_S * workload.expected_shapes(candidate) / workload.length_mix.run_steps


def prior_s(workload: Workload, candidate: Candidate, of: Magnitudes) -> float:
    """Seconds of an optimizer step of `candidate`, by order of magnitude; samples have seq_len."""
    shape = workload.shape(candidate.depth)
    accum = workload.grad_accum(candidate) or 1
    tokens = candidate.tokens * (_UNSIZED_TOKENS if _is_unsized(workload, candidate) else 1)
    flops = tokens * shape.flops_per_token(candidate.seq_len)
    again = recomputed_share(candidate.checkpointing, candidate.depth)
    flops += again * tokens * 2.0 * shape.block_matrices
    if candidate.loss == "chunked":  # the backward pass computes the logits again
        flops += tokens * 2.0 * shape.vocab_size * shape.width
    flops /= candidate.ranks_a_replica
    flops *= math.prod(_FACTORS.get((name, getattr(candidate, name)), 1.0) for name in AXES)
    rate = of.flops_per_s * tokens / (tokens + of.half_rate_tokens)
    rate *= shape.width / (shape.width + of.half_rate_width)
    micro_s = of.fixed_s + of.block_s * shape.depth / candidate.pp + flops / rate
    micro_s += sent_bytes(workload, candidate) / of.link_bytes_per_s
    micro_s *= bubble(candidate, accum)
    if candidate.loss == "chunked":
        head_bytes = BYTES[workload.dtype] * shape.vocab_size * shape.width
        micro_s += (LOSS_CHUNKS - 1) * _HEAD_PASSES * head_bytes / of.memory_bytes_per_s
    if candidate.quantized:  # whole weights are written and read again, forward and backward
        passes = 2 + again
        micro_s += passes * 4.0 * shape.linear / of.memory_bytes_per_s
    # Adam reads and writes weights, gradients and two moments.
    ranks, held = workload.replicas(candidate), shares(workload, candidate).state
    share = ranks if candidate.zero_stage else 1
    update_s = 28.0 * held * shape.parameters / share / of.memory_bytes_per_s
    weights_bytes = (4.0 if workload.dtype == "fp32" else 2.0) * shape.parameters
    weights_bytes /= candidate.tp * candidate.pp
    if ranks > 1:
        passes = {0: 2, 1: 2, 2: 2, 3: 3}[candidate.zero_stage]
        traffic_s = passes * weights_bytes * (ranks - 1) / ranks / of.link_bytes_per_s
        if candidate.zero_stage == 3:
            micro_s += traffic_s
        else:
            update_s += traffic_s
    if candidate.offload != "none":
        update_s += 2 * weights_bytes / share / of.host_bytes_per_s
        update_s += 16.0 * shape.parameters / share / of.host_adam_bytes_per_s
    if candidate.offload == "all":
        micro_s += 2 * weights_bytes / share / of.host_bytes_per_s
    return accum * micro_s + update_s
