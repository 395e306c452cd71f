"""What a script of the user's own is launched with."""

from __future__ import annotations

import pytest

from autotune.measure.testbed.scripted import visible


@pytest.mark.parametrize(
    ("spec", "before", "found"),
    [
        ("auto", "4,5", None),
        ("cuda", "", None),
        ("cuda:0,2", "", "0,2"),
        ("cuda:0,2", "4,5,6", "4,6"),
        ("cpu", "4,5", ""),
    ],
)
def test_a_script_sees_the_chosen_devices(spec: str, before: str, found: str | None) -> None:
    variables = visible(spec, before)
    assert variables.get("CUDA_VISIBLE_DEVICES") == found
    assert ("CUDA_DEVICE_ORDER" in variables) == (spec != "cpu")
