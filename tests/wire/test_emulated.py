"""What a program that fails on emulated devices is told."""

from __future__ import annotations

import pytest

from autotune.wire.emulated import VARIABLE, why

REFUSED = "emulated GPUs: cudaMallocArray has no stand-in\n"


@pytest.mark.parametrize(
    ("error", "file", "log", "names"),
    [
        ("cuFFT error: CUFFT_INTERNAL_ERROR", "train.py", "", "cuFFT"),
        ("wrong type", "/env/numba/cuda/cudadrv/driver.py", "", "numba"),
        ("API call is not supported", "cupy_backends/cuda/api/runtime.pyx", "", "cupy"),
        ("CUDA error: operation not supported", "train.py", REFUSED, "cudaMallocArray"),
        ("was ended by SIGABRT", "train.py", REFUSED, "cudaMallocArray"),
        ("KeyError: 3", "train.py", REFUSED, ""),
        ("wrong type", "/env/numba/core/typing/templates.py", "", ""),
    ],
)
def test_what_is_not_emulated_is_named(
    monkeypatch: pytest.MonkeyPatch, error: str, file: str, log: str, names: str
) -> None:
    trace = f'  File "/env/numba/cuda/first.py", line 1, in f\n  File "{file}", line 2, in g\n'
    assert why(error, trace, log) == ""
    monkeypatch.setenv(VARIABLE, "state")
    assert why(error, trace, log) == (f" (emulated GPUs have no {names})" if names else "")
