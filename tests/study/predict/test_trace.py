"""Traces of shallow models, made up, to the bytes of every candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.space.space import Space
from autotune.space.trace import MOST_MICRO_BATCHES, request, why_untraced
from autotune.space.workload import GlobalBatch
from autotune.wire.helpers import Traced
from autotune.wire.ranks import ModelSpec
from tests.support import records
from tests.support.traces import made_up, weight


def space(**fields: Any) -> Space:
    """Depths 2 and 4 (64 and 4 x 64 wide), lengths 64 and 128, none and full checkpointing."""
    return records.space(**fields)


def with_workload(whole: Space, **fields: Any) -> Space:
    return replace(whole, workload=replace(whole.workload, **fields))


def of(whole: Space, values: np.ndarray, **fields: Any) -> float:
    """The value of the only candidate with these fields."""
    (found,) = [
        value
        for candidate, value in zip(whole.candidates, values, strict=True)
        if all(getattr(candidate, name) == wanted for name, wanted in fields.items())
    ]
    return float(found)


ONE = {"depth": 4, "seq_len": 128, "checkpointing": "none"}
FOUR_DEEP = ModelSpec(name="gpt", depth=4, width=256, vocab_size=4096, checkpointing="none")


# What is asked.


def test_every_width_and_checkpointing_is_asked_for_at_two_depths() -> None:
    asked = request(space())
    found = [(m.width, m.checkpointing, m.depth) for m in asked.models]
    assert sorted(found) == sorted(
        (width, kind, depth)
        for width in (128, 256)
        for kind in ("none", "full")
        for depth in (1, 2)
    )
    assert {(m.name, m.vocab_size) for m in asked.models} == {("gpt", 4096)}
    assert (asked.seq_lens, asked.micro_batches) == ([64, 128], [1, 2, 4, 8])
    assert (asked.dtype, asked.optimizer) == ("fp32", "adamw")


def test_of_what_is_kept_on_the_host_alone_nothing_is_asked() -> None:
    kept = tuple({replace(c, checkpointing="host") for c in space().candidates})
    whole = replace(space(), candidates=kept)
    assert request(whole, "cuda").models == []
    assert "kept on the host" in why_untraced(whole, "cuda")


def test_depths_of_one_width_share_their_models() -> None:
    asked = request(with_workload(space(depth=(2, 4, 8)), width=192))
    assert {m.width for m in asked.models} == {192}
    assert len(asked.models) == 4


def test_of_a_long_axis_only_some_are_asked_for_and_its_ends_are() -> None:
    asked = request(space(micro_batch=tuple(range(3, 300))))
    assert len(asked.micro_batches) == MOST_MICRO_BATCHES
    assert asked.micro_batches == sorted(set(asked.micro_batches))
    assert (asked.micro_batches[0], asked.micro_batches[-1]) == (3, 299)


@pytest.mark.parametrize(
    ("fields", "stay"),
    [
        ({}, False),
        ({"world_size": 2}, True),
        ({"global_batch": GlobalBatch(8, "samples")}, True),
    ],
    ids=str,
)
def test_gradients_stay_where_they_accumulate(fields: dict[str, Any], stay: bool) -> None:
    assert request(with_workload(space(), **fields)).gradients_stay is stay


# What it means.


def test_what_is_held_and_the_peak_grow_evenly_with_depth() -> None:
    whole = space()
    traced = made_up(request(whole))
    assert of(whole, traced.held(whole), **ONE, micro_batch=4) == weight(FOUR_DEEP)
    peak = of(whole, traced.peaks(whole), **ONE, micro_batch=4)
    assert peak == weight(FOUR_DEEP) + 4 * 7 * 4 * 128
    assert of(whole, traced.over_state(whole), **ONE, micro_batch=4) == 4 * 7 * 4 * 128


@pytest.mark.parametrize(("every", "deepest"), [(2, 5), (3, 8), (4, 8)])
def test_a_checkpointed_share_is_traced_until_it_repeats(every: int, deepest: int) -> None:
    base = space(depth=(4, 20))
    some = {replace(c, checkpointing=f"1/{every}") for c in base.candidates}
    whole = replace(base, candidates=tuple(some))
    traced = made_up(request(whole))
    assert max(model.depth for model in traced.asked.models) <= max(4, deepest)
    assert traced.covers(whole, whole.candidates[0])
    over = traced.over_state(whole)
    for depth in (4, 20):
        checkpointed = -(-depth // every)
        found = of(whole, over, depth=depth, seq_len=128, micro_batch=4)
        assert found == 4 * 128 * (7 * (depth - checkpointed) + 2 * checkpointed)


def test_gradients_that_stay_are_over_the_state_too() -> None:
    whole = space()
    asked = request(whole)
    plain, staying = made_up(asked), made_up(replace(asked, gradients_stay=True))
    more = staying.over_state(whole) - plain.over_state(whole)
    shapes = [whole.workload.shape(c.depth) for c in whole.candidates]
    assert more.tolist() == [4.0 * shape.parameters for shape in shapes]


def test_each_candidate_has_the_value_of_its_own_kind_length_and_size() -> None:
    whole = space()
    shuffled = replace(whole, candidates=whole.candidates[::-3])
    over = made_up(request(whole)).over_state(shuffled)
    expected = [
        c.depth * c.tokens * (7 if c.checkpointing == "none" else 2) for c in shuffled.candidates
    ]
    assert over.tolist() == expected


def test_stage_and_offload_do_not_matter() -> None:
    whole = space()
    staged = replace(whole, candidates=tuple(replace(c, zero_stage=2) for c in whole.candidates))
    traced = made_up(request(whole))
    assert traced.peaks(staged).tolist() == traced.peaks(whole).tolist()


def test_between_traced_sizes_there_are_lines_and_they_go_on_beyond() -> None:
    traced = made_up(request(space()), hinge=7 * 2 * 128)  # level up to 2, then 7 * 128 each
    wider = space(micro_batch=(1, 2, 3, 6, 8, 16))
    over = traced.over_state(wider)
    sizes = {size: of(wider, over, **ONE, micro_batch=size) for size in (1, 3, 6, 16)}
    assert sizes == {size: 4 * 7 * 128 * max(2, size) for size in sizes}


def test_one_traced_size_stands_for_all() -> None:
    traced = made_up(request(space(micro_batch=(4,))))
    wider = space(micro_batch=(1, 4))
    over = traced.over_state(wider)
    assert of(wider, over, **ONE, micro_batch=1) == of(wider, over, **ONE, micro_batch=4)


def test_a_peak_is_never_below_that_of_the_update_at_full_depth() -> None:
    whole = space()
    peaks = made_up(request(whole), update=10**6).peaks(whole)
    assert of(whole, peaks, **ONE, micro_batch=1) == weight(FOUR_DEEP) + 4 * 10**6


def test_a_model_that_could_not_be_traced_has_no_number_and_the_others_do() -> None:
    whole = space()
    traced = made_up(request(whole))
    first = traced.asked.models[0]
    models = [Traced.failed(traced.asked), *traced.answer.models[1:]]
    missing = replace(traced.answer, models=models)
    untraced = replace(traced, answer=missing)
    for values in (untraced.held(whole), untraced.peaks(whole)):
        unknown = np.isnan(values)
        concerned = [
            64 * c.depth == first.width and c.checkpointing == first.checkpointing
            for c in whole.candidates
        ]
        assert unknown.tolist() == concerned
