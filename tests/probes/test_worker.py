"""What a worker says of itself."""

from __future__ import annotations

import pytest
import torch

from probes.worker import versions


def test_what_numbers_depend_on_has_tf32_and_the_libraries_of_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
