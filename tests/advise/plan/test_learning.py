"""Whether what was measured was measured on such a card."""

from __future__ import annotations

import pytest

from autotune.advise.plan.learning import is_such
from autotune.device.cards import parse_gpus


@pytest.mark.parametrize(
    ("gpus", "name", "same"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H100 PCIe", False),
        ("H100-PCIe", "NVIDIA H100 PCIe", True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100 80GB PCIe", True),
        ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation", True),
        ("A10", "NVIDIA A10G", False),
        # Memory alone is no card, whatever the digits of others.
        ("80GiB", "NVIDIA H100 80GB HBM3", False),
        ("80GiB", "NVIDIA GeForce RTX 3080", False),
    ],
)
def test_a_card_is_the_one_that_its_whole_name_says(gpus: str, name: str, same: bool) -> None:
    assert is_such(parse_gpus(gpus).card, name) == same
