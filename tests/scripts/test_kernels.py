"""The comparison of kernels' times on a real GPU and an emulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from tests.support.programs import ROOT
from tests.support.scripts import load

kernels: Any = load("kernels")
H200 = ROOT / "results" / "kernels" / "h200.csv"


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    head, steps = kernels.read(H200)
    assert (head["device"], steps.keys()) == ("NVIDIA H200", kernels.STEPS.keys())
    kernels.write(tmp_path / "again.csv", head, steps)
    assert kernels.read(tmp_path / "again.csv") == (head, steps)


def test_most_of_a_real_step_has_a_kind() -> None:
    """In its time; what is left are launches of microseconds."""
    for name, times in kernels.read(H200)[1].items():
        kinds = kernels.by_kind(times)
        assert kinds["others"][1] < 0.01 * sum(ms for _, ms in kinds.values()), name


def test_names_are_the_same_kind_mangled_or_not() -> None:
    for real, emulated, kind in (
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "product", "products"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy",
         "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy", "converted"),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl",
         "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_15gpu_kernel_impl",
         "by computed places"),
        ("triton_per_fused__fused_rms_norm_0", "triton_per_fused__fused_rms_norm_0", "compiled"),
    ):  # fmt: skip
        assert kernels.kind_of(real) == kernels.kind_of(emulated) == kind


def test_the_last_step_is_what_comes_again() -> None:
    step = [f"7 0x1 {i} {1000 * i} kernel {i}" for i in range(120)]
    trace = ["7 0x1 0 5 made once", *step, *step]
    found = kernels.last_step(trace)
    assert len(found) == 120
    assert found["kernel 3"] == (1, 3.0)


def test_both_are_beside_each_other() -> None:
    text = kernels.compared({"product": (2, 3000.0)}, {"product": (2, 4500.0)})
    assert "| products | 2 | 3.00 | 4.50 | +50% |" in text
    assert "| all | 2 | 3.00 | 4.50 | +50% |" in text


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("# {}\nstep,kernel\na,b\n")
    with pytest.raises(UsageError, match="no recording of kernels"):
        kernels.read(tmp_path / "x.csv")
    assert kernels.main("compare", str(tmp_path / "none.csv")) == 2
