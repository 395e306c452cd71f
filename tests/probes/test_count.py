"""What is counted of models: against closed forms, and against themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autotune.wire.helpers import Count
from autotune.wire.ranks import ModelSpec
from probes import count as counting
from probes.count import _Flops, _formulas, count
from probes.dataless import dataless
from probes.models import family
from tests.support.models import uncounted, usual_depth

PUBLISHED = {
    "t5-small": 60.5e6, "gemma-3-1b": 1.00e9, "gemma-3-27b": 27.0e9, "mamba-7b": 7.27e9,
    "mamba2": 2.70e9, "llama-3-8b": 8.03e9, "qwen3-8b": 8.19e9, "mixtral": 46.7e9,
    "gpt2": 124.4e6, "bert-large": 335.2e6, "vit-base": 86.57e6, "whisper-small": 241.7e6,
    "wav2vec2-base": 94.4e6, "qwen2.5-vl-3b": 3.75e9,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_kept_config_has_the_parameters_that_its_model_is_known_for(name: str) -> None:
    pytest.importorskip("transformers")
    workload = uncounted(name)
    deepest = workload.spec(usual_depth(workload))
    found = count(Count(models=[deepest], shallow=[], seq_lens=[]))
    assert found.parameters[0].parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", ["llama-3-8b-tiny", "gemma-3-1b-tiny", "t5-small-tiny"])
def test_shallow_models_give_every_depth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    workload = uncounted(name)
    specs = [workload.spec(depth) for depth in (5, 13)]
    shares = [workload.shares(depth) for depth in (5, 13)]
    asked = Count(models=specs, shallow=workload.shallow(), seq_lens=[32], shares=shares)
    counted = count(replace(asked, shares=[])).flops_per_sample
    monkeypatch.setattr(counting, "_flops", partial(_but, counting._flops, specs))
    assert count(asked).flops_per_sample == [pytest.approx(each, rel=1e-9) for each in counted]


def _but(
    flops: Callable[[ModelSpec, list[int]], list[float]], specs: list[ModelSpec],
    spec: ModelSpec, lengths: list[int],
) -> list[float]:  # fmt: skip
    assert spec not in specs, "counted whole"
    return flops(spec, lengths)


def test_layers_that_differ_are_counted_as_they_are() -> None:
    """Three dense layers before those with experts: shallow models see none of these."""
    pytest.importorskip("transformers")
    workload = uncounted("mixtral-tiny")
    workload.recipe["config"] = {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "vocab_size": 128,
        "hidden_size": 32, "intermediate_size": 256, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
        "mlp_only_layers": [0, 1, 2],
    }  # fmt: skip
    found = count(Count(
        models=[workload.spec(depth) for depth in (6, 2)], shallow=workload.shallow(),
        seq_lens=[32], shares=[workload.shares(depth) for depth in (6, 2)],
    ))  # fmt: skip
    assert not found.uncounted
    [six], [two] = found.flops_per_sample
    assert six < 2.5 * two


def test_a_mixture_of_experts_counts_those_that_work() -> None:
    pytest.importorskip("transformers")
    workload = uncounted("mixtral-tiny")
    more = {**workload.recipe, "config": workload.recipe["config"] | {"num_local_experts": 8}}
    flops = []
    for each in (workload, replace(workload, recipe=more)):
        shallow = [each.spec(depth) for depth in (1, 2)]
        found = count(Count(models=shallow[1:], shallow=shallow, seq_lens=[32]))
        assert not found.uncounted
        flops.append(found.flops_per_sample[0][0])
    # The router of four more experts is all there is more.
    assert flops[0] < flops[1] < 1.02 * flops[0]


def test_weights_that_are_drawn_by_looking_at_them_are_no_hindrance() -> None:
    """As ModernBERT's are; without data there is nothing to look at."""
    pytest.importorskip("transformers")
    workload = uncounted("bert-large-tiny")
    workload.recipe["config"] = {
        "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "vocab_size": 128,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    }  # fmt: skip
    specs = [workload.spec(depth) for depth in (1, 2, 3)]
    found = count(Count(models=specs[2:], shallow=specs[:2], seq_lens=[32]))
    assert not found.uncounted
    made, counter = family("hf"), FlopCounterMode(display=False, custom_mapping=_formulas())
    module = made.make(specs[2])
    batch = made.batch(specs[2], 2, 32, torch.Generator().manual_seed(0))
    with counter:
        made.loss(module, batch).backward()  # type: ignore[no-untyped-call]
    assert found.flops_per_sample == [[counter.get_total_flops() / 2]]


def test_what_a_model_computes_in_inference_mode_counts() -> None:
    """There operations come whole, with no formula."""

    def counted_by(counter: FlopCounterMode | _Flops) -> None:
        frozen, trained = nn.Linear(4, 8), nn.Linear(8, 2)
        with counter:
            with torch.inference_mode():
                x = frozen(torch.ones(3, 4))
            trained(x.clone()).sum().backward()

    of_torch, ours = FlopCounterMode(display=False), _Flops()
    counted_by(of_torch)
    with dataless():
        counted_by(ours)
    assert ours.total == of_torch.get_total_flops() == 2 * 3 * (4 * 8 + 2 * 8 * 2)
