"""The DeepSpeed config: what DeepSpeed itself makes of it, and what it says of a candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.space.candidate import Candidate
from autotune.space.engines import ENGINES
from autotune.space.models.counted import CountedShape
from autotune.space.workload import GlobalBatch
from tests.support import defaults

WORKLOAD = defaults.workload(
    width=None,
    vocab_size=32768,
    dtype="bf16",
    world_size=4,
    global_batch=GlobalBatch(256, "samples"),
)
EVERY = [
    Candidate(depth=12, seq_len=1024, micro_batch=8, zero_stage=stage, offload=offload)
    for stage in (0, 1, 2, 3)
    for offload in ("none", "optimizer", "all")
    if Candidate(depth=12, seq_len=1024, micro_batch=8, zero_stage=stage, offload=offload).exists
]


def of(candidate: Candidate, kind: str = "cuda", **workload: Any) -> dict[str, Any]:
    return ENGINES["deepspeed"].config(candidate, replace(WORKLOAD, **workload), kind)


@pytest.mark.parametrize("candidate", EVERY, ids=lambda c: c.key)
def test_deepspeed_reads_the_config_without_a_complaint(candidate: Candidate) -> None:
    from deepspeed.runtime.zero.config import get_zero_config

    read = get_zero_config(of(candidate))
    assert read.stage == candidate.zero_stage
    assert (read.offload_optimizer is not None) == (candidate.offload != "none")
    assert (read.offload_param is not None) == (candidate.offload == "all")


@pytest.mark.parametrize("candidate", EVERY, ids=lambda c: c.key)
def test_batch_sizes_multiply_to_the_global_batch(candidate: Candidate) -> None:
    found = of(candidate)
    micro, accum = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert micro * accum * WORKLOAD.world_size == found["train_batch_size"] == 256


def test_buckets_grow_with_the_model_and_stay_below_deepspeeds_defaults() -> None:
    small, large = (
        of(Candidate(depth=depth, seq_len=1024, micro_batch=8, zero_stage=3))["zero_optimization"]
        for depth in (4, 24)
    )
    for name in ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"):
        assert small[name] < large[name] < 5e8


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["script", "counted"])
def test_buckets_of_models_with_odd_blocks_are_even(name: str, stage: int) -> None:
    """DeepSpeed takes no others."""
    shape = CountedShape(
        depth=2, width=8, vocab_size=16, parameters=1001, trainable=1001, block_matrices=4,
        largest_block=333, seq_lens=[32], flops=[1.0],
    )  # fmt: skip
    candidate = Candidate(depth=2, seq_len=32, micro_batch=1, zero_stage=stage)
    workload: dict[str, Any] = {"model": "hf:model", "shapes": [shape], "global_batch": None}
    if name == "script":
        workload |= {"model": "script", "recipe": {"set": {}}}
    zero = of(candidate, **workload)["zero_optimization"]
    assert zero["allgather_bucket_size"] == 334
    assert all(size % 2 == 0 for size in (v for k, v in zero.items() if "bucket_size" in k))


def test_dtypes_are_switched_on_one_at_a_time() -> None:
    for dtype in ("fp32", "bf16", "fp16"):
        found = of(EVERY[0], dtype=dtype)
        assert found["bf16"]["enabled"] == (dtype == "bf16")
        assert found["fp16"]["enabled"] == (dtype == "fp16")


def test_memory_is_pinned_only_beside_a_gpu() -> None:
    candidate = Candidate(depth=12, seq_len=1024, micro_batch=8, zero_stage=3, offload="all")
    for kind, pinned in (("cuda", True), ("cpu", False)):
        zero = of(candidate, kind)["zero_optimization"]
        assert zero["offload_optimizer"]["pin_memory"] is pinned
        assert zero["offload_param"]["pin_memory"] is pinned


MOVED = Candidate(depth=12, seq_len=1024, micro_batch=8, zero_stage=2, offload="optimizer")


@pytest.mark.parametrize(
    ("candidate", "kind", "of_torch", "fused"),
    [
        (EVERY[0], "cuda", True, True),
        (EVERY[0], "cpu", True, False),
        (MOVED, "cuda", False, False),  # DeepSpeed's own
        (MOVED, "cpu", True, False),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_an_optimizer_is_torch_s_but_for_one_moved_from_a_gpu(
    candidate: Candidate, kind: str, of_torch: bool, fused: bool
) -> None:
    params = of(candidate, kind)["optimizer"]["params"]
    assert (params["torch_adam"], params.get("fused", False)) == (of_torch, fused)
    assert "fused" not in of(replace(candidate, optimizer="muon"), kind)["optimizer"]["params"]


def test_no_timer_waits_for_the_device() -> None:
    from deepspeed.utils.config import get_timers_config

    assert get_timers_config(of(EVERY[0])).enabled is False


def test_muon_does_not_scatter_its_gradients() -> None:
    assert of(replace(EVERY[3], optimizer="muon"))["zero_optimization"]["reduce_scatter"] is False
