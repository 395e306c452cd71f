"""Recorded grids as files: what is written is read back, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.testbed.recording import Recording
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from tests.support import defaults
from tests.support.programs import ROOT
from tests.support.recorded import CALM, failed, header, row, write
from tests.support.records import space

A, B, *_ = space().candidates
GPU = replace(
    CALM, busy_cpu_s=1.5, sm_clock_mhz=1980, power_w=650.5, temperature_c=61, throttle_reasons=4,
    thermally_throttled=True,
)  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        grid.read(path)
    return str(refused.value)


# What is written is read.


@pytest.mark.parametrize(
    "written",
    [
        row(A),
        row(B, ([0.5, 0.25], [0.125] * 7), start_s=0.0, overhead=1.5, repeat=2),
        row(
            Candidate(
                depth=2,
                seq_len=64,
                micro_batch=1,
                zero_stage=3,
                offload="all",
                checkpointing="full",
            ),
            ([0.5], [0.25]),
            conditions=GPU,
            joules=162.5,
        ),
        failed(A, Verdict.OOM, 'rank 0 ran out, "asking" for 1 GiB, it says'),
        failed(A, Verdict.CRASHED, ""),
    ],
    ids=["measured", "few steps", "on a GPU", "out of memory", "no reason"],
)
def test_a_measurement_is_read_as_it_was_written(tmp_path: Path, written: grid.GridRow) -> None:
    assert grid.read(write(tmp_path / "g.csv", [written])).rows == (written,)


def test_a_reason_of_several_lines_takes_one(tmp_path: Path) -> None:
    (read,) = grid.read(
        write(tmp_path / "g.csv", [failed(A, Verdict.CRASHED, "first\n\r\n second")])
    ).rows
    assert read.reason == "first second"


def test_the_header_says_what_was_recorded_where(tmp_path: Path) -> None:
    workload = defaults.workload(
        width=128, vocab_size=777, dtype="bf16", engine="deepspeed", world_size=2
    )
    found = grid.read(write(tmp_path / "g.csv", workload=workload))
    assert (found.device_kind, found.device, found.workload) == ("cpu", "a processor", workload)
    assert found.limits == space().limits


def test_a_grid_of_gpus_is_named_after_the_first(tmp_path: Path) -> None:
    devices = {"kind": "cuda", "devices": [{"name": "a GPU"}, {"name": "a GPU"}]}
    fingerprint = {"kind": "cuda", "devices": devices}
    found = grid.read(write(tmp_path / "g.csv", kind="cuda", fingerprint=fingerprint))
    assert (found.device_kind, found.device) == ("cuda", "a GPU")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "g.csv", [row(A), row(B)])
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert [each.candidate for each in grid.read(path).rows] == [A]


def test_a_new_recording_has_no_rows(tmp_path: Path) -> None:
    assert grid.read(write(tmp_path / "g.csv", [])).rows == ()


def test_an_axis_that_is_younger_than_the_file_is_plain(tmp_path: Path) -> None:
    path = write(tmp_path / "g.csv", [row(A)])
    first, names, cells = path.read_text().splitlines()
    assert ",auto," in cells
    path.write_text("\n".join([first, names.replace("attention,", ""),
                               cells.replace("auto,", "", 1), ""]))  # fmt: skip
    assert [each.candidate for each in grid.read(path).rows] == [A]


# What is no grid.


def test_a_grid_of_an_unknown_family_is_refused(tmp_path: Path) -> None:
    made = header()
    made["space"]["workload"]["model"] = "bert"
    path = tmp_path / "g.csv"
    path.write_text(grid.head(made) + grid.row_line(row(A)))
    assert "model bert" in refusal(path)


@pytest.mark.parametrize(
    ("line", "change", "says"),
    [
        (1, lambda text: text.replace('"schema_version":1', '"schema_version":2'), "of version 1"),
        (1, lambda text: text[:-20], "its first line is not JSON"),
        (1, lambda text: text.replace('"vocab_size"', '"vocabulary"'), "line 1: not a recorded"),
        (1, lambda text: text.replace('"space"', '"place"'), "line 1: not a recorded grid: "),
        (1, lambda text: text.replace("4294967296", "NaN"), "its first line is not JSON"),
        (2, lambda text: text.replace("timed_s,", ""), "line 2: the columns"),
        (3, lambda text: text.replace(",ok,", ",pruned?,"), "line 3: no measurement"),
        (3, lambda text: text.replace(",ok,", ",oom,"), "contradicts its step times"),
        (3, lambda text: text + ",more", "not as many cells"),
        (3, lambda text: text.replace(",none,", ",some,", 1), "some is none of none, optimizer"),
        (3, lambda text: text.replace(",none,", ",all,", 1), "no stage 0 with offload all"),
        (3, lambda text: "0" + text[1:], "Expected `int` >= 1"),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: int, change: Any, says: str) -> None:
    path = write(tmp_path / "g.csv")
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join([*lines, ""]))
    message = refusal(path)
    assert message.startswith(str(path))
    assert says in message


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "grids").glob("*.csv")), ids=str)
def test_the_grids_that_are_kept_can_be_read(path: Path) -> None:
    recording = Recording(path)
    asked = Options.of(model=recording.grid.workload.model)
    trace, space = recording.grid.trace, recording.space(asked)
    assert recording.grid.rows
    assert trace is not None
    assert any(trace.covers(space, each) for each in space.candidates) == bool(trace.asked.models)
