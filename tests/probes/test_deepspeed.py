"""What DeepSpeed's CUDA code does with the environment that ranks have, without a GPU."""

from __future__ import annotations

import inspect
import os
import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes.world import World


@pytest.fixture(scope="module")
def engine() -> Any:
    """The module, which imports DeepSpeed and torch's compiler with it."""
    return import_module("probes.engines.deepspeed")


@pytest.fixture
def accelerator(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's own, where NVML can be had and devices are named by their UUIDs."""
    from deepspeed.accelerator import cuda_accelerator

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5ba1e2f2-0000-0000-0000-000000000000")
    nvml = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda index: index)
    monkeypatch.setattr(cuda_accelerator, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (12345, 100_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 10_000)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device=None: 0.5)
    return cuda_accelerator.CUDA_Accelerator()


def test_its_own_way_to_free_memory_wants_integers(accelerator: Any) -> None:
    """Where this passes no longer, the detour can go."""
    with pytest.raises(ValueError, match="GPU-5ba1e2f2"):
        accelerator.available_memory()


def test_free_memory_is_what_torch_says(engine: Any, accelerator: Any) -> None:
    engine.free_memory_from_torch(accelerator)
    assert accelerator.available_memory() == 12345
    assert accelerator.available_memory(0) == 12345


def test_free_memory_is_within_the_limit_of_the_process(
    engine: Any, accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 40_000)
    engine.free_memory_from_torch(accelerator)
    assert accelerator.available_memory() == 10_000


def test_a_rank_on_a_gpu_takes_that_way(
    engine: Any, accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        raise StopIteration

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(engine, "get_accelerator", lambda: accelerator)
    monkeypatch.setattr("deepspeed.init_distributed", look)
    start: Any = SimpleNamespace(local_rank=0)
    with pytest.raises(StopIteration):
        engine.DeepSpeedEngine(start, World(0, 1, torch.device("cuda", 0)))
    assert accelerator.available_memory() == 12345


def test_what_each_rank_with_zero_imports_is_there_before_it_is_forked(engine: Any) -> None:
    zero = import_module("deepspeed.runtime.zero.utils")
    supported = inspect.getsource(zero.is_zero_supported_optimizer)
    (name,) = re.findall(r"from (deepspeed\S+\.muon\.\S+) import", supported)
    assert vars(engine)["muon_optimizer"].__name__ == name


def test_a_rank_of_a_second_host_has_its_place_there(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed takes the device of LOCAL_RANK."""
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)

    def look() -> None:
        places.update({name: os.environ[name] for name in places})
        raise StopIteration

    monkeypatch.setattr("deepspeed.init_distributed", look)
    start: Any = SimpleNamespace(local_rank=1)
    with pytest.raises(StopIteration):
        engine.DeepSpeedEngine(start, World(3, 4, torch.device("cpu"), 2))
    assert places == {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
