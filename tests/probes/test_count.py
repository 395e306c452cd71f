"""What is counted of models: against closed forms, and against themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.models import FAMILIES, gpt
from autotune.wire.messages import Count, ModelSpec
from probes.count import count
from tests.support.models import uncounted


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_counts_of_gpt_are_its_closed_form(depth: int, checkpointing: str) -> None:
    shape = gpt.FAMILY.shape(depth, 128, 97)
    spec = ModelSpec(
        name="gpt", depth=depth, width=128, vocab_size=97, checkpointing=checkpointing
    )
    found = count(Count(models=[spec], shallow=[replace(spec, checkpointing="none")],
                        seq_lens=[16, 64]))  # fmt: skip
    [parameters] = found.parameters
    assert parameters.parameters == parameters.trainable == shape.parameters
    assert parameters.block_matrices == shape.block_matrices
    assert parameters.largest_block == shape.largest_block
    assert found.flops_per_sample == [[16 * shape.flops_per_token(16),
                                       64 * shape.flops_per_token(64)]]  # fmt: skip
    assert not found.uncounted


PUBLISHED = {
    "t5-small": 60.5e6, "gemma-3-1b": 1.00e9, "gemma-3-27b": 27.0e9, "mamba-7b": 7.27e9,
    "mamba2": 2.70e9, "llama-3-8b": 8.03e9, "qwen3-8b": 8.19e9, "mixtral": 46.7e9,
    "gpt2": 124.4e6, "bert-large": 335.2e6,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_kept_config_has_the_parameters_that_its_model_is_known_for(name: str) -> None:
    pytest.importorskip("transformers")
    workload = uncounted(name)
    [depth] = FAMILIES["hf"].defaults(workload.recipe, "cpu").depth
    found = count(Count(models=[workload.spec(depth, "none")], shallow=[], seq_lens=[]))
    assert found.parameters[0].parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", ["llama-3-8b-tiny", "gemma-3-1b-tiny", "t5-small-tiny"])
def test_two_shallow_models_give_every_depth(name: str) -> None:
    pytest.importorskip("transformers")
    workload = uncounted(name)
    low, high = workload.shallow_depths
    depths = [low, high, 4 * low]
    found = count(Count(models=[], shallow=[workload.spec(d, "none") for d in depths],
                        seq_lens=[32]))  # fmt: skip
    [one], [two], [deep] = found.flops_per_sample
    assert deep == pytest.approx(one + 3 * (two - one), rel=1e-9)


def test_a_mixture_of_experts_counts_those_that_work() -> None:
    pytest.importorskip("transformers")
    workload = uncounted("mixtral-tiny")
    more = {**workload.recipe, "config": workload.recipe["config"] | {"num_local_experts": 8}}
    flops = []
    for each in (workload, replace(workload, recipe=more)):
        found = count(Count(models=[], shallow=[each.spec(2, "none")], seq_lens=[32]))
        assert not found.uncounted
        flops.append(found.flops_per_sample[0][0])
    # The router of four more experts is all there is more.
    assert flops[0] < flops[1] < 1.02 * flops[0]
