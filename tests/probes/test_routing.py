"""Tokens sent to experts: balanced, or with a hot one, in the models of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autotune.wire.ranks import BALANCED, HOT, ROUTINGS, ModelSpec
from probes import routing
from probes.describe import StorageLedger
from probes.models import family

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32},
    "deepseek_v3": {"n_routed_experts": 8, "n_group": 2, "topk_group": 2, "kv_lora_rank": 8,
                    "q_lora_rank": 8, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
                    "v_head_dim": 16, "first_k_dense_replace": 0, "moe_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16, "layer_types": ["full_attention"] * 2},
}  # fmt: skip


def spec(kind: str = "mixtral", **more: Any) -> ModelSpec:
    """A model of two layers, with eight experts of which each token chooses two."""
    config = SIZES | {
        "model_type": kind, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    recipe = {"config": config | MODELS.get(kind, {}) | more, "task": "causal", "code": "",
              "lora": None, "target_len": None}  # fmt: skip
    return ModelSpec(name="hf", depth=2, width=32, vocab_size=64, recipe=recipe)


def made(of: ModelSpec) -> nn.Module:
    torch.manual_seed(3)
    module = family("hf").make(of)
    routing.install(module)
    return module


def step(module: nn.Module, tokens: int = 64) -> Tensor:
    """The loss of a batch, whose gradients are there."""
    batch = family("hf").batch(spec(), 2, tokens // 2, torch.Generator().manual_seed(5))
    loss = family("hf").loss(module, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@given(
    experts=st.integers(2, 128), chosen=st.integers(1, 8), tokens=st.integers(1, 500),
    kind=st.sampled_from(ROUTINGS),
)  # fmt: skip
def test_each_token_goes_to_distinct_experts_and_each_expert_gets_its_share(
    experts: int, chosen: int, tokens: int, kind: str
) -> None:
    chosen = min(chosen, experts)
    shares = routing.shares(kind, experts, chosen)
    found = routing._choices(kind, tokens, experts, chosen, torch.device("cpu"))
    assert all(len(set(row)) == chosen for row in found.tolist())
    counts = torch.bincount(found.flatten().long(), minlength=experts).tolist()[::-1]
    near = 8  # what places that are spread, and not random, may be off by
    assert all(abs(n - tokens * of) < near for n, of in zip(counts, shares, strict=True))


def test_shares_are_even_or_fall_as_zipf_has_it_and_none_is_above_all_tokens() -> None:
    assert routing.shares(BALANCED, 8, 2) == pytest.approx([0.25] * 8)
    hot = routing.shares(HOT, 8, 2)
    assert sum(hot) == pytest.approx(2)
    assert hot[0] / hot[3] == pytest.approx(4**routing.SKEW)
    assert hot[0] == pytest.approx(2.47 * 0.25, rel=0.01)
    many = routing.shares(HOT, 64, 16)
    assert many[0] == 1
    assert sum(many) == pytest.approx(16)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ROUTINGS)
def test_experts_get_the_forced_choices_and_routers_their_gradient(kind: str, way: str) -> None:
    module, seen = made(spec(kind)), []
    assert routing.of(module) == "forced"
    for experts, _ in routing._forced(module):
        experts.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    routing.force(way)
    loss = step(module)
    assert loss.isfinite()
    expected = routing._choices(way, 64, 8, 2, torch.device("cpu"))
    assert len(seen) == 2
    assert all(torch.equal(each, expected.long()) for each in seen)
    routers = [p.grad for n, p in module.named_parameters() if "gate.weight" in n or "router" in n]
    assert routers
    assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in routers)


class Own(nn.Module):
    """Experts of a user's own, called as those of transformers are."""

    num_experts = 8

    def forward(self, x_nd: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return top_k_index


def test_experts_of_a_users_own_are_forced_if_they_are_called_alike() -> None:
    own = nn.Sequential(Own())
    assert routing.of(own) == "forced"
    routing.install(own)
    index_nk = torch.zeros(6, 2, dtype=torch.long)
    for found in (own[0](index_nk, index_nk, None),
                  own[0](index_nk, top_k_index=index_nk, top_k_weights=None)):  # fmt: skip
        assert len(set(found.flatten().tolist())) > 2


def test_a_checkpoint_recomputes_the_same_choices() -> None:
    routing.force(HOT)
    plain, kept = made(spec()), made(replace(spec(), checkpointing="full"))
    assert torch.equal(step(plain), step(kept))
    pairs = zip(plain.parameters(), kept.parameters(), strict=True)
    for one, other in pairs:
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


def test_compiled_blocks_follow_another_routing_without_another_compilation() -> None:
    module, graphs = made(spec()), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain = {}
    for way in ROUTINGS:
        routing.force(way)
        plain[way] = step(module)
    assert plain[HOT] != plain[BALANCED]
    torch._dynamo.reset()
    for block in family("hf").blocks(module):
        block.forward = torch.compile(block.forward, backend=backend, fullgraph=True)
    routing.force(BALANCED)
    assert torch.allclose(step(module), plain[BALANCED])
    compiled = len(graphs)
    routing.force(HOT)
    assert torch.allclose(step(module), plain[HOT])
    assert len(graphs) == compiled > 0


def peak_bytes(module: nn.Module, way: str) -> int:
    """The most that tensors of a step hold."""
    routing.force(way)
    module.zero_grad()
    with StorageLedger() as ledger:
        return int(ledger.timeline(lambda: step(module, tokens=1024)).max())


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_hot_expert_needs_more_memory_where_experts_run_in_turn(
    kind: str, checkpointing: str
) -> None:
    wide = {"moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size": 512}
    module = made(replace(
        spec(kind, **wide, experts_implementation="eager"), checkpointing=checkpointing
    ))  # fmt: skip
    peak_bytes(module, BALANCED)  # what is made once
    balanced, hot = (peak_bytes(module, way) for way in ROUTINGS)
    more_rows = int(1024 * (routing.shares(HOT, 8, 2)[0] - 0.25))
    assert hot - balanced > 1.5 * more_rows * 512 * 4  # in fp32


def test_grouped_experts_need_the_same_memory_in_any_routing() -> None:
    module = made(spec("mixtral", intermediate_size=512, experts_implementation="grouped_mm"))
    peak_bytes(module, BALANCED)
    balanced, hot = (peak_bytes(module, way) for way in ROUTINGS)
    assert hot == balanced


def test_a_dense_model_has_no_routing_and_others_may_have_their_own() -> None:
    dense = family("gpt").make(ModelSpec(name="gpt", depth=1, width=64, vocab_size=8))
    assert routing.of(dense) == ""
    llama4 = {"num_local_experts": 2, "intermediate_size_mlp": 32, "head_dim": 16}
    own = family("hf").make(spec("llama4_text", **llama4, interleave_moe_layer_step=1))
    assert routing.of(own) == "own"
