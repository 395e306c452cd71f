"""Products in fp8 on emulated cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated.conftest import Emulate, begin, end
from tests.support.on_cards import study

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


def test_kernels_that_torch_compiles_as_it_runs(emulate: Emulate) -> None:
    """nvrtc asks the driver before it compiles; recipes of torchao use such kernels."""
    program = "import torch; print(torch.exp2(torch.ones(4, device='cuda')).shape)"
    assert "[4]" in end(begin(emulate("1x24GiB"), program))


def test_a_study_compares_the_recipes(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    rows = study(
        tmp_path / "study", "--device", "emulated:2xH100", "--model", "llama-3-8b-tiny",
        "--depth", "2", "--seq-len", "256", "--micro-batch", "2", "--checkpointing", "none",
        "--engine", "fsdp", "--zero", "3", "--dtype", "fp8", "--float8", "off,tensorwise,rowwise",
    )  # fmt: skip
    assert {row["verdict"] for row in rows} <= {"ok", "pruned"}
    assert {row["float8"] for row in rows} == {"off", "tensorwise", "rowwise"}
