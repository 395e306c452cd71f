"""Rows of trials.csv."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.result.folder.table import COLUMNS, row
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from tests.support.records import MIB, QUIET, record

A = Candidate(depth=4, seq_len=128, micro_batch=8, checkpointing="full")
CONTRACT = [
    "depth", "seq_len", "micro_batch", "zero_stage", "offload", "checkpointing", "verdict",
    "tokens_per_s", "model_flops_per_s", "step_s_median", "peak_device_bytes", "peak_host_bytes",
    "predicted_peak_bytes", "started_s", "probe_s", "witness", "reason",
]  # fmt: skip
MEASURED = [
    "tokens_per_s", "model_flops_per_s", "samples_per_s", "step_s_median", "step_s_low",
    "step_s_high", "steps", "disturbed_share",
]  # fmt: skip


def test_the_names_of_the_contract_come_first_in_their_order() -> None:
    assert list(COLUMNS)[: len(CONTRACT)] == CONTRACT


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_row_has_every_column_in_order_whatever_the_verdict(verdict: Verdict) -> None:
    assert list(row(record(A, verdict))) == list(COLUMNS)


def test_a_measured_trial_on_a_gpu_leaves_only_what_was_not_said_empty() -> None:
    gpu = replace(QUIET, sm_clock_mhz=1980, power_w=650.0, temperature_c=60, throttle_reasons=0)
    cells = row(record(A, conditions=gpu))
    empty = {name for name, value in cells.items() if value is None}
    assert empty == {
        "predicted_peak_bytes", "predicted_low_bytes", "predicted_high_bytes", "witness", "reason",
        "kernels", "joules_per_token", "waiting_share", "tokens", "log",
    }  # fmt: skip


def test_a_trial_without_a_measurement_has_empty_cells_for_what_it_did_not_measure() -> None:
    cells = row(record(A, Verdict.OOM, reason="out of memory"))
    assert {cells[name] for name in [*MEASURED, "peak_device_bytes"]} == {None}


def test_a_trial_that_failed_gives_the_peaks_it_could_still_say() -> None:
    measured = record(A, peak_mib=900).outcome.measurement
    assert measured is not None
    failed = record(A, Verdict.OOM)
    failed = replace(failed, outcome=replace(failed.outcome, peaks=measured.peaks))
    assert row(failed)["peak_device_bytes"] == 900 * MIB


def test_values_stand_under_the_names_of_what_they_are() -> None:
    one = record(
        A, number=7, purpose="final", tokens_per_s=2048, noise=0.1, steps=9, peak_mib=100,
        joules_per_token=0.25,
    )  # fmt: skip
    cells = row(one)
    assert (cells["depth"], cells["seq_len"], cells["micro_batch"]) == (4, 128, 8)
    assert (cells["number"], cells["kind"], cells["key"]) == (
        7,
        "final",
        "d4-s128-b8-z0-none-full",
    )
    assert cells["tokens_per_s"] == pytest.approx(2048)
    assert [cells[f"step_s_{name}"] for name in ("low", "median", "high")] == pytest.approx(
        [0.45, 0.5, 0.55]
    )
    assert (cells["steps"], cells["peak_device_bytes"]) == (9, 100 * MIB)
    assert cells["joules_per_token"] == 0.25


def test_the_verdict_is_written_as_plain_text() -> None:
    assert type(row(record(A, Verdict.OVER_CEILING))["verdict"]) is str
