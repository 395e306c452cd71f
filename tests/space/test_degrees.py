"""What degrees of parallelism are possible, and what they are expected to cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from autotune.space import degrees
from autotune.space.candidate import Candidate
from autotune.space.models.described import Description
from autotune.space.workload import GlobalBatch, Workload
from tests.support.records import WORKLOAD

MODEL = Description(
    layers=6, width=64, heads=8, kv_heads=4, vocab_size=512, attention=4 * 64 * 64,
    mlp=3 * 64 * 256, experts=4, expert=3 * 64 * 256, chosen=2,
)  # fmt: skip


def workload(ranks: int = 16, command: str = "train.py", model: Description = MODEL) -> Workload:
    return replace(
        WORKLOAD, model="script:train.py", world_size=ranks,
        recipe={"command": command, "own": {}, "set": {}, "described": asdict(model)},
        shapes=[model.shape(6, [48, 64])],
    )  # fmt: skip


def candidate(**axes: Any) -> Candidate:
    return Candidate(**{"depth": 6, "seq_len": 64, "micro_batch": 2} | axes)


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"tp": 4, "pp": 2, "cp": 2}, None),
        ({"tp": 4, "pp": 3}, "tp x pp x cp must divide 16 ranks"),
        ({"tp": 4, "pp": 6, "cp": 2}, "tp x pp x cp must divide 16 ranks"),
        ({"tp": 8}, "tp must divide the model's 4 KV heads"),
        ({"tp": 16}, "tp must divide the model's 8 heads"),
        ({"pp": 4}, "pp must divide the model's 6 layers"),
        ({"ep": 8}, "ep must divide the model's 4 experts"),
        ({"ep": 4, "tp": 2}, None),
        ({"ep": 4, "tp": 4, "pp": 2}, "ep must divide dp_shard x cp"),
        ({"ep": 4, "tp": 4, "pp": 2, "cp": 2}, "ep must divide dp_shard x cp"),
        ({"ep": 4, "tp": 2, "dp_shard": "2"}, "ep must divide dp_shard x cp"),
        ({"ep": 4, "cp": 2, "dp_shard": "2"}, None),
        ({"tp": 2, "dp_shard": "3"}, "dp_shard must divide dp"),
        ({"cp": 8, "seq_len": 48}, None),
        ({"cp": 16, "seq_len": 48}, "2 x cp must divide seq_len"),
    ],
)  # fmt: skip
def test_what_must_divide_what(axes: dict[str, Any], why: str | None) -> None:
    found = degrees.impossible(workload(), candidate(**axes), MODEL)
    assert (found and found.reason) == why


def test_a_model_without_experts_has_no_expert_parallelism() -> None:
    dense = replace(MODEL, experts=0)
    found = degrees.impossible(workload(), candidate(ep=2), dense)
    assert found == degrees.Impossible(("ep",), "the model has no experts")
    assert degrees.impossible(workload(), candidate(ep=2), None) is None


@pytest.mark.parametrize("command", ["-m torchtitan.train", "pretrain_gpt.py --sequence-parallel"])
def test_tp_divides_the_length_where_it_cuts_sequences(command: str) -> None:
    uneven = candidate(tp=2, cp=4, seq_len=24)
    found = degrees.impossible(workload(command=command), uneven, None)
    assert found is not None
    assert "must divide seq_len" in found.reason
    assert degrees.impossible(workload(), uneven, None) is None


def test_a_global_batch_is_shared_by_replicas() -> None:
    of = replace(workload(8), global_batch=GlobalBatch(64, "samples"))
    assert of.replicas(candidate(tp=2, cp=2)) == 2
    assert of.micro_steps(candidate(tp=2, cp=2)) == 16
    assert of.global_batch_samples(candidate(tp=2, cp=2)) == 64
    assert of.over(4, candidate(tp=2, cp=2)).micro_steps(candidate(tp=2, cp=2)) == 8


def test_state_is_cut_by_tp_and_pp_and_where_it_is_told_by_dp_shard_and_cp() -> None:
    of = candidate(tp=2, pp=2, cp=2)
    assert degrees.shares(workload(), of).state == pytest.approx(1 / 4)
    sharded = workload(command="train.py {dp_shard}")
    assert degrees.shares(sharded, of).state == pytest.approx(1 / 16)
    assert degrees.shares(sharded, replace(of, dp_shard="1")).state == pytest.approx(1 / 8)
    experts = MODEL.expert_parameters(6) / workload().shape(6).parameters
    found = degrees.shares(workload(), candidate(ep=4)).state
    assert found == pytest.approx(1 - 0.75 * experts)


def test_activations_are_cut_by_cp_and_in_part_by_tp() -> None:
    """arXiv 2205.05198, table 2: s b h (10 + 24 / t) without sequence parallelism, 34 / t with."""
    found = degrees.shares(workload(), candidate(tp=4, cp=2))
    assert found.blocks == pytest.approx((10 + 24 / 4) / 34 / 2)
    assert found.head == 1 / 8
    cut = degrees.shares(workload(command="p.py --sequence-parallel"), candidate(tp=4, pp=2))
    assert cut.blocks == pytest.approx(1 / 4)


def test_a_pipeline_waits_at_its_ends() -> None:
    """arXiv 2104.04473, section 2.2: (p - 1) / m."""
    assert degrees.bubble(candidate(pp=4), 6) == pytest.approx(1.5)
    assert degrees.bubble(candidate(pp=3), 1) == pytest.approx(2)  # it cuts the micro-batch
    assert degrees.bubble(candidate(), 6) == 1


def test_tp_sends_four_sums_a_layer_and_costs_more_beyond_a_machine() -> None:
    of = workload(16)
    one_layer = 2 * 64 * 64 * 4  # samples, tokens, channels, fp32
    assert degrees.sent_bytes(of, candidate(tp=2)) == pytest.approx(4 * 6 * one_layer)
    near, far = (degrees.sent_bytes(of, candidate(tp=n)) / (1 - 1 / n) for n in (8, 16))
    assert far == pytest.approx(8 * near)
    assert degrees.sent_bytes(of, candidate()) == 0
    assert degrees.sent_bytes(of, candidate(pp=2)) < degrees.sent_bytes(of, candidate(cp=2))
