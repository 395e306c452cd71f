"""Workloads of models that are counted, as a study would have them."""

from __future__ import annotations

from dataclasses import asdict, replace

from autotune.space.models import FAMILIES, family_name
from autotune.space.models.counted import CountedShape
from autotune.space.models.defaults import Lora, ModelRequest
from autotune.space.models.hf import TINY, ready
from autotune.space.workload import Workload
from autotune.wire.helpers import Count
from tests.support.records import WORKLOAD

KNOWN = {"seq_len": 128, "dtype": "fp32", "device": "cpu"}


SMALL = [name for name in ready() if name.endswith(TINY)]
"""A small model of each family of transformers."""


def usual_depth(of: Workload) -> int:
    [depth] = FAMILIES["hf"].defaults(of.recipe, "cpu").depth
    return depth


def uncounted(model: str, lora: Lora | None = None) -> Workload:
    recipe = FAMILIES[family_name(model)].recipe(ModelRequest(model=model, lora=lora))
    recipe |= {key: value for key, value in KNOWN.items() if key in recipe}
    return replace(WORKLOAD, model=model, recipe=recipe)


def counted(
    model: str,
    depths: tuple[int, ...],
    seq_lens: tuple[int, ...] = (64, 128),
    lora: Lora | None = None,
) -> Workload:
    """With the counts of these depths, made in this process."""
    from probes.count import count

    whole = uncounted(model, lora)
    specs = [whole.spec(depth) for depth in depths]
    shallow = whole.shallow()
    found = count(Count(models=specs, shallow=shallow, seq_lens=list(seq_lens)))
    assert not found.uncounted
    shapes = [
        CountedShape(
            **asdict(each), depth=depth, seq_lens=list(seq_lens),
            flops=[flops / n for flops, n in zip(of, seq_lens, strict=True)],
        )
        for depth, each, of in zip(depths, found.parameters, found.flops_per_sample, strict=True)
    ]  # fmt: skip
    return replace(whole, shapes=shapes, vocab_size=shapes[0].vocab_size)
