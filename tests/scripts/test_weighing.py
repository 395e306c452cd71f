"""Pages about weighing, from what their scripts wrote down."""

from __future__ import annotations

from typing import Any

from tests.support.scripts import load

fits: Any = load("fits")
ahead: Any = load("ahead")


def cell(gpus: int, micro_batch: int, gib: int, **more: str) -> dict[str, str]:
    found = {
        "model": "t5-small", "card": "H100", "gpus": str(gpus), "micro_batch": str(micro_batch),
        "fits": "True", "weighed": "True", "peak_bytes": str(gib << 30), "seconds": "60",
        "weighings": "3",
    }  # fmt: skip
    return found | more


def test_a_table_has_what_fits_what_is_needed_and_what_was_not_weighed() -> None:
    page = fits.page([
        cell(1, 1, 90, fits="False"), cell(2, 30, 60), cell(4, 1024, 50),
        cell(8, 1024, 40, weighed="False"),
    ])  # fmt: skip
    row = "| t5-small | 512 | H100 | needs 90.0 GiB | **30**, 60.0 GiB | **1024+**, 50.0 GiB | - |"
    assert row in page
    assert "3 of 96 cells were weighed, by 12 candidates in 4 minutes" in page
    assert "t5-small on 8 H100;" in page
    assert "t5-small on 1, 2, 4, 8 H200;" in page


def test_probes_lost_are_counted_over_pairs_alone() -> None:
    row = {
        "space": "t5-small", "seed": "0", "candidates": "9", "probes": "10", "weighed": "0",
        "weighing_s": "0", "elapsed_s": "60", "best_flops": "100",
    }  # fmt: skip
    rows = [row | {"weigh": "no", "lost": "1"}, row | {"weigh": "yes", "lost": "0"},
            row | {"space": "gpt, FSDP", "weigh": "no", "lost": "5"}]  # fmt: skip
    page = ahead.report(rows, 0)
    assert "| 1 of 10, 10.0% | 0 of 10, 0.0% |" in page
    assert "gpt, FSDP" in page.partition("Not run: ")[2]
