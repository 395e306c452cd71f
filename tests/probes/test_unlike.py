"""Ranks with unlike micro-batches train as one process with all their samples."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor

from tests.support.jobs import Trained, train

pytestmark = pytest.mark.slow


def trained(folder: Path, vector: str, **how: object) -> tuple[Trained, dict[str, Tensor]]:
    """Losses of steps of 6 samples, and the gradients of the first."""
    found = train(
        folder, micro_batch_per_rank=vector, world_size=len(vector.split("+")), global_batch=6,
        copy=True, **how,  # type: ignore[arg-type]
    )  # fmt: skip
    return found, torch.load(folder / "gradients.pt")


@cache
def whole() -> tuple[Trained, dict[str, Tensor]]:
    return trained(Path(mkdtemp()) / "whole", "6")


@pytest.mark.parametrize(
    ("engine", "vector", "stage"),
    [("ddp", "2+4", 0), ("ddp", "1+2", 0), ("ddp", "1+2+3", 0), ("fsdp", "2+4", 2),
     ("fsdp", "4+2", 3)],
)  # fmt: skip
def test_gradients_and_losses_are_those_of_one_process(
    tmp_path: Path, engine: str, vector: str, stage: int
) -> None:
    mine, gradients = trained(tmp_path / "job", vector, engine=engine, stage=stage)
    reference, expected = whole()
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)
    assert mine.losses == pytest.approx(reference.losses, rel=1e-5)
