"""Which exceptions are taken for memory, and which must not be."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import torch

from autotune.wire.stopping import Phase
from probes.faults import UnsupportedError, fault


def cause(error: BaseException, device_kind: str = "cuda") -> str:
    return fault(error, Phase.WARMUP, device_kind, None).cause


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("NCCL error ...: Cuda failure 2 'out of memory'"),
        RuntimeError(
            'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/c10/cuda/CUDACachingAllocator.cpp":11,'
            " please report a bug to PyTorch."
        ),
    ],
)
def test_what_cuda_libraries_say_of_memory_is_an_oom(error: Exception) -> None:
    assert cause(error) == "oom"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_host_memory_is_the_device_s_on_a_cpu_and_the_host_s_by_a_gpu(error: Exception) -> None:
    assert cause(error, "cpu") == "oom"
    assert cause(error, "cuda") == "host_oom"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape '[3]' is invalid for input of size 4"),
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"),
        RuntimeError("NCCL error: unhandled system error, remote process exited"),
        RuntimeError("the memory of this bug is short"),
        ValueError("CUDA out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
        AssertionError(),
    ],
)
def test_an_error_that_is_no_oom_is_never_taken_for_one(error: Exception) -> None:
    assert cause(error) == cause(error, "cpu") == "crashed"


def test_a_wrapped_oom_is_one_and_an_error_raised_while_it_is_handled_is_none() -> None:
    wrapped, later = RuntimeError("the step failed"), KeyError("a bug in the handler")
    wrapped.__cause__ = later.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert (cause(wrapped), cause(later)) == ("oom", "crashed")


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedError("stage 3 has no Muon"),
        NotImplementedError(),
        RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
    ],
)
def test_what_a_library_cannot_do_is_unsupported(error: Exception) -> None:
    assert cause(error) == "unsupported"


def test_the_failed_allocation_says_how_much_it_asked_for() -> None:
    cuda = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
    assert fault(cuda, Phase.TIMED, "cuda", None).requested_bytes == int(1.5 * 2**30)
    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        torch.ones(2**50)
    assert fault(caught.value, Phase.TIMED, "cpu", None).requested_bytes == 2**52


@pytest.mark.parametrize(("free", "found"), [(100 * 2**20, "oom"), (2**30, "crashed")])
def test_a_library_that_cannot_begin_on_a_full_device_is_out_of_memory(
    free: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 8 * 2**30))
    text = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    assert cause(RuntimeError(text)) == found


def pin_memory() -> None:
    raise RuntimeError("CUDA error: out of memory")


def in_several_lines() -> None:
    torch.empty(
        10,
        pin_memory=True,
    )


@pytest.mark.parametrize("pin", [
    pin_memory,
    pytest.param(in_several_lines, marks=pytest.mark.skipif(torch.cuda.is_available(),
                                                            reason="it can be pinned here")),
])  # fmt: skip
def test_memory_that_cannot_be_pinned_is_the_hosts(pin: Callable[[], None]) -> None:
    with pytest.raises(RuntimeError) as raised:
        pin()
    raised.value.args = ("CUDA error: out of memory",)
    assert cause(raised.value) == "host_oom"


def test_memory_for_what_comes_back_to_the_device_is_the_devices() -> None:
    pin_memory = True
    with pytest.raises(RuntimeError) as raised:
        torch.ones(1).to("nowhere", non_blocking=pin_memory)
    raised.value.args = ("CUDA error: out of memory",)
    assert cause(raised.value) == "oom"
