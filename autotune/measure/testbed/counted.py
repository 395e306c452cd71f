"""Counts of a model that has no closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from autotune.space.models import FAMILIES
from autotune.space.models.counted import CountedShape
from autotune.space.space import Fixed
from autotune.space.workload import Workload
from autotune.wire.helpers import Count, Counted

CountModels = Callable[[Count], Counted]
"""Has models counted; raises what `runner.counting.count` does."""


def counted(
    workload: Workload,
    depths: Sequence[int],
    seq_lens: Sequence[int],
    count: CountModels,
    device_kind: str,
) -> tuple[Workload, list[Fixed]]:
    """`workload` with the counts of its model, and what has to be said of them."""
    if (mix := workload.length_mix) is not None:
        seq_lens = sorted({*seq_lens, *map(mix.weighted_mean, seq_lens)})
    family = FAMILIES[workload.family]
    looked_at = family.looked_at(workload.recipe, seq_lens)
    found = count(Count(
        models=[workload.spec(depth) for depth in depths],
        shallow=workload.shallow(),
        shares=[workload.shares(depth) for depth in depths],
        seq_lens=list(looked_at),
    ))  # fmt: skip
    shapes = [
        CountedShape(
            **asdict(each),
            depth=depth,
            seq_lens=list(seq_lens),
            flops=_by_length(flops, looked_at, seq_lens),
            block_floats=family.block_floats(workload.recipe, device_kind),
        )
        for depth, each, flops in zip(
            depths, found.parameters, found.flops_per_sample, strict=True
        )
    ]
    remarks = [Fixed("FLOPs", "6 a parameter and token", f"not counted: {found.uncounted}")]
    return replace(
        workload, shapes=shapes, vocab_size=shapes[0].vocab_size
    ), remarks if found.uncounted else []


def _by_length(
    of_samples: Sequence[float], looked_at: Sequence[int], seq_lens: Sequence[int]
) -> list[float]:
    """FLOPs per token at each length, where samples of those `looked_at` take `of_samples`."""
    per_token = {n: of / n for n, of in zip(looked_at, of_samples, strict=True)}
    # Where others were looked at, a token takes the same in all of them.
    return [per_token.get(n, per_token[looked_at[-1]]) for n in seq_lens]
