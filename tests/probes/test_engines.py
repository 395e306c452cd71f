"""Engines against each other, with real ranks: the same numbers, and memory where it belongs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from autotune.space.workload import Workload
from tests.support.choice import campaign
from tests.support.jobs import Trained, train
from tests.support.models import counted

pytestmark = pytest.mark.slow

DEEPSPEED = [("deepspeed", {"stage": stage}) for stage in (0, 1, 2, 3)]
OFFLOADED = [
    ("deepspeed", {"stage": 1, "offload": "optimizer"}),
    ("deepspeed", {"stage": 2, "offload": "optimizer"}),
    ("deepspeed", {"stage": 3, "offload": "optimizer"}),
    ("deepspeed", {"stage": 3, "offload": "all"}),
]
FSDP = [("fsdp", {"stage": 2}), ("fsdp", {"stage": 3})]
CHECKPOINTED: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {"checkpointing": "full"}),
    ("deepspeed", {"stage": 3, "checkpointing": "full"}),
    ("deepspeed", {"stage": 3, "offload": "all", "checkpointing": "full"}),
    ("fsdp", {"stage": 3, "checkpointing": "full"}),
]
SPLIT: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {"micro_batch": 1}),
    ("deepspeed", {"stage": 2, "micro_batch": 1}),
    ("deepspeed", {"stage": 3, "micro_batch": 1}),
    ("fsdp", {"stage": 3, "micro_batch": 1}),
    ("ddp", {"world_size": 1, "micro_batch": 8}),
]
ALL = [*DEEPSPEED, *OFFLOADED, *FSDP, *CHECKPOINTED, *SPLIT]
EACH = [DEEPSPEED[-1], OFFLOADED[-1], *FSDP, *CHECKPOINTED[:2], *SPLIT[:1], *SPLIT[2:]]
REST = [case for case in ALL if case not in EACH]


@cache
def reference() -> Trained:
    return train(Path(mkdtemp()) / "ddp")


def name(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(str(value) for value in case[1].values())])


@pytest.mark.parametrize("case", [*EACH, *campaign(*((case,) for case in REST))], ids=name)
def test_losses_agree_with_plain_ddp(tmp_path: Path, case: tuple[str, dict[str, Any]]) -> None:
    engine, how = case
    trained = train(tmp_path / "job", engine, **how)
    assert trained.losses == pytest.approx(reference().losses, rel=1e-4)
    assert trained.parameters == reference().parameters


OWN: list[tuple[str, dict[str, Any]]] = [
    ("deepspeed", {"stage": 0}),
    ("deepspeed", {"stage": 1, "offload": "optimizer"}),
    ("deepspeed", {"stage": 3}),
    ("fsdp", {"stage": 3}),
]


@cache
def own() -> Workload:
    return counted("factory:tests.support.own:known", (2,), (32,))


@cache
def own_reference() -> Trained:
    return train(Path(mkdtemp()) / "ddp", workload=own(), copy=True)


@pytest.mark.parametrize("case", OWN, ids=name)
def test_a_model_s_optimizer_is_used(tmp_path: Path, case: tuple[str, dict[str, Any]]) -> None:
    engine, how = case
    trained = train(tmp_path / "job", engine, workload=own(), copy=True, **how)
    assert trained.losses == pytest.approx(own_reference().losses, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stage"), [("fsdp", 3), ("deepspeed", 3)])
def test_blocks_that_we_checkpoint_train_as_others(
    tmp_path: Path, engine: str, stage: int
) -> None:
    of = counted("factory:tests.support.own:unread", (2,), (32,))
    plain = train(tmp_path / "plain", "ddp", workload=of, copy=True)
    other = train(
        tmp_path / "other", engine, stage=stage, workload=of, copy=True, checkpointing="full"
    )
    assert other.losses == pytest.approx(plain.losses, rel=1e-4)


def test_the_reference_learns() -> None:
    losses = reference().losses
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


def large(folder: Path, engine: str, stage: int = 0, steps: int = 0) -> Trained:
    """A model of which there is enough to weigh."""
    return train(folder, engine, stage=stage, depth=10, width=768, vocab_size=1024, steps=steps)


def test_making_a_stage_3_model_needs_less_than_making_it_whole(tmp_path: Path) -> None:
    whole = large(tmp_path / "whole", "deepspeed")
    sharded = large(tmp_path / "sharded", "deepspeed", stage=3, steps=1)
    assert sharded.model_bytes < whole.model_bytes
    assert sharded.building_bytes < sharded.peak_bytes


def test_building_a_sharded_fsdp_model_needs_less_than_building_it_whole(tmp_path: Path) -> None:
    whole = large(tmp_path / "whole", "ddp")
    sharded = large(tmp_path / "sharded", "fsdp", stage=3)
    assert sharded.building_bytes < whole.building_bytes - 0.25 * 4 * whole.parameters


@pytest.mark.parametrize(
    ("engine", "stage", "dtype"), [("deepspeed", 2, "bf16"), ("fsdp", 3, "bf16")]
)
def test_bf16_follows_fp32_training(tmp_path: Path, engine: str, stage: int, dtype: str) -> None:
    trained = train(tmp_path / "job", engine, stage=stage, dtype=dtype)
    assert trained.losses == pytest.approx(reference().losses, rel=0.02)
