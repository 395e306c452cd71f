"""How a worker begins, and what it says of itself."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from autotune.wire.ranks import ModelSpec
from probes import worker
from probes.worker import versions
from tests.support import defaults
from tests.support.meters import Hearing


def test_versions_have_tf32_and_the_libraries_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found = versions()
    finally:
        torch.set_float32_matmul_precision(before)
    assert found["float32_matmul_precision"] == "high"
    assert (found["cuda"], found["nccl"], found["cudnn_allow_tf32"]) == ("12.8", "2.27.5", "false")


def test_a_rank_is_limited_before_its_engine_is_built_and_metered_right_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = Hearing()

    def engine(*how: Any) -> object:
        meter.calls.append("engine")
        return object()

    monkeypatch.setattr(worker, "join", lambda *how, **more: meter.calls.append("join"))
    monkeypatch.setattr(worker, "load", lambda name: engine)
    model = ModelSpec(name="gpt", depth=1, width=64, vocab_size=10, checkpointing="none")
    start = defaults.start(model=model)
    worker.set_up(start, 0, meter, lambda message: None)
    gc.unfreeze()
    assert meter.calls == ["join", "limit", "engine", "built"]
