"""Which torch a driver runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.device.torch_build import TorchBuild, torch_build, unfit


def test_this_torch_is_found_without_an_import() -> None:
    import torch

    build = torch_build()
    assert build is not None
    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda or "")
    assert build.site == Path(torch.__file__).parents[1]


@pytest.mark.parametrize(
    ("cuda", "driver_cuda", "said"),
    [
        ("13.0", 13000, ""),
        ("12.8", 12020, ""),  # any driver of CUDA 12
        ("12.6", 13000, ""),
        ("13.0", 12080, "is built for CUDA 13.0, and driver 570 runs 12.8 at most; update the"
                        " driver, or pip install torch --index-url https://download.pytorch.org/"
                        "whl/cu128"),
        ("13.0", 12020, "whl/cu126"),
        ("12.6", 11080, "a driver of 2023 or later"),
        ("", 12080, "is built without CUDA; pip install torch --index-url https://download"
                    ".pytorch.org/whl/cu128"),
        ("", 11040, "a driver of 2023 or later"),
        ("", 14010, "whl/cu130"),  # a driver that is newer than every wheel
    ],
)  # fmt: skip
def test_a_driver_runs_any_cuda_of_its_major_version(
    cuda: str, driver_cuda: int, said: str
) -> None:
    found = unfit(TorchBuild("2.14.1", cuda, hip=False, site=Path()), "570", driver_cuda)
    assert bool(found) == bool(said)
    assert said in found


def test_nothing_is_said_of_other_makers_or_without_torch() -> None:
    assert unfit(None, "570", 12080) == ""
    assert unfit(TorchBuild("2.14.1", "", hip=True, site=Path()), "570", 12080) == ""
