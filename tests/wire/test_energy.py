"""Which counters are of whole processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.wire.energy import of_host
from tests.support import rapl


def test_packages_alone_are_counted(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path, 2, range_uj=1000)
    rapl.count(folder, 7, package=1)
    found = of_host(folder).counters
    assert [(counter.range, counter.read()) for counter in found] == [(1000, 0), (1000, 7)]


def test_a_machine_without_rapl_has_none(tmp_path: Path) -> None:
    assert of_host(tmp_path / "missing").counters == ()


def test_a_counter_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path)
    (folder / "intel-rapl:0" / "energy_uj").write_text("")
    with pytest.raises(ValueError, match="invalid literal"):
        of_host(folder)
