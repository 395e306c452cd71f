"""Bytes of model state against the ZeRO paper's own table."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.space.candidate import Build
from autotune.space.engines import ENGINES, StateBytes, state_bytes
from autotune.space.models.defaults import GptTraits
from autotune.space.models.gpt import shape_of
from tests.support import defaults

SHAPE = shape_of(2, 128, 97, GptTraits())
N = SHAPE.parameters


def state(
    *, engine: str = "deepspeed", dtype: str = "bf16", world_size: int = 64, **build: Any
) -> StateBytes:
    workload = defaults.workload(
        width=SHAPE.width, vocab_size=SHAPE.vocab_size, dtype=dtype, engine=engine,
        world_size=world_size,
    )  # fmt: skip
    return state_bytes(workload, Build(depth=SHAPE.depth, **build))


@pytest.mark.parametrize(
    ("how", "a_parameter"),
    [
        # Figure 1 of the paper, with Adam in mixed precision on 64 ranks: GB of 7.5e9 parameters.
        ({"zero_stage": 0}, 120 / 7.5),
        ({"zero_stage": 1}, 31.4 / 7.5),
        ({"zero_stage": 2}, 16.6 / 7.5),
        ({"zero_stage": 3}, 1.88 / 7.5),
        ({"engine": "ddp", "dtype": "fp32"}, 16),
        ({"engine": "fsdp", "zero_stage": 3, "world_size": 4}, 16 / 4),
        # ZeRO in fp32 keeps a copy of its partition to step on.
        ({"dtype": "fp32", "zero_stage": 3, "world_size": 1}, 20),
    ],
    ids=str,
)
def test_a_device_holds_so_many_bytes_a_parameter(how: dict[str, Any], a_parameter: float) -> None:
    assert state(**how).device / N == pytest.approx(a_parameter, rel=0.01)


def test_offload_moves_the_optimizer_and_then_the_weights_to_the_host() -> None:
    kept = state(zero_stage=3)
    moved = state(zero_stage=3, offload="optimizer")
    everything = state(zero_stage=3, offload="all")
    assert moved.host == kept.optimizer
    assert (moved.device, moved.gradients) == (kept.weights, 0)
    assert everything.host == kept.optimizer + kept.weights
    assert everything.device == 0
    first = state(zero_stage=1, offload="optimizer")
    assert first.gradients == pytest.approx(63 / 64 * state(zero_stage=1).gradients)


def test_offload_keeps_a_partition_of_what_passes_through_on_the_host() -> None:
    assert state(zero_stage=2, offload="optimizer").passing == 2 * N / 64
    assert state(zero_stage=3, offload="optimizer").passing == 4 * N / 64
    assert state(zero_stage=3).passing == 0


def test_muon_keeps_one_moment_of_the_blocks_matrices() -> None:
    adam, muon = state(engine="ddp"), state(engine="ddp", optimizer="muon")
    assert adam.optimizer - muon.optimizer == 4 * SHAPE.block_matrices


@pytest.mark.parametrize(
    ("engine", "stage", "param_dtype", "kept"),
    [  # weights, master_weights, gradients, reduction, optimizer
        ("ddp", 0, "fp32", "fp32 fp32 fp32 fp32 fp32"),
        ("ddp", 0, "bf16", "bf16 bf16 bf16 bf16 bf16"),
        ("deepspeed", 2, "fp32", "fp32 fp32 fp32 bf16 fp32"),
        ("deepspeed", 3, "bf16", "bf16 bf16 bf16 bf16 bf16"),
        ("fsdp", 3, "fp32", "fp32 fp32 fp32 fp32 fp32"),
        ("fsdp", 3, "bf16", "bf16 bf16 bf16 fp32 bf16"),
    ],
)
def test_dtypes_of_what_is_sent(engine: str, stage: int, param_dtype: str, kept: str) -> None:
    found = ENGINES[engine].dtypes(
        "bf16", Build(depth=2, zero_stage=stage, offload="none", param_dtype=param_dtype)
    )
    assert found.pop("compute") == "bf16"
    assert " ".join(found.values()) == kept


@pytest.mark.parametrize(
    ("engine", "stage", "runs"),
    [("ddp", 0, True), ("deepspeed", 2, True), ("deepspeed", 3, False), ("fsdp", 3, False)],
)
def test_weights_of_few_bits_are_not_sharded(engine: str, stage: int, runs: bool) -> None:
    for base in ("nf4", "int8"):
        build = Build(depth=2, zero_stage=stage, base=base)
        assert (ENGINES[engine].lacks(build, "cuda") is None) == runs
    assert ENGINES[engine].lacks(Build(depth=2, zero_stage=stage, base="bf16"), "cuda") is None


def test_beside_a_base_of_its_own_type_the_rest_is_as_products_are() -> None:
    ddp = ENGINES["ddp"]
    assert ddp.dtypes("bf16", Build(depth=2))["weights"] == "fp32"
    for base in ("bf16", "nf4", "int8"):
        assert ddp.dtypes("bf16", Build(depth=2, base=base))["weights"] == "bf16"
        assert ddp.dtypes("fp16", Build(depth=2, base=base))["weights"] == "fp32"
    own = Build(depth=2, base="nf4", param_dtype="fp32")
    assert ddp.dtypes("bf16", own)["weights"] == "fp32"
    both = Build(depth=2, base="bf16", param_dtype="fp32")
    assert ddp.lacks(both, "cuda") is not None
