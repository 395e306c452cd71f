"""What DeepSpeed's CUDA code does with the environment that ranks have, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.accelerator import cuda_accelerator

from probes.engines.deepspeed import free_memory_from_torch


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's own, where NVML can be had and devices are named by their UUIDs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5ba1e2f2-0000-0000-0000-000000000000")
    nvml = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda index: index)
    monkeypatch.setattr(cuda_accelerator, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (12345, 99999))
    return cuda_accelerator.CUDA_Accelerator()


def test_its_own_way_to_free_memory_wants_integers(accelerator: Any) -> None:
    """Where this passes no longer, the detour can go."""
    with pytest.raises(ValueError, match="GPU-5ba1e2f2"):
        accelerator.available_memory()


def test_free_memory_is_what_torch_says(accelerator: Any) -> None:
    free_memory_from_torch(accelerator)
    assert accelerator.available_memory() == 12345
    assert accelerator.available_memory(0) == 12345
