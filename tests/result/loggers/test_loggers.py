"""Trials as runs of experiment trackers: read back as these read them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import Trial

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.result import loggers
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import Journal, records_in
from autotune.result.loggers import write
from autotune.result.loggers.runs import runs_of
from autotune.space.candidate import Candidate
from autotune.space.choices import LOGGERS
from autotune.space.outcome import Record, Verdict
from tests.support import recorded
from tests.support.programs import ROOT
from tests.support.records import LIMITS, record
from tests.support.trackers import READERS

HOSTILE = "<script>alert(1)</script>\n# \u202e\x1b[2J`x`"
FULL = Candidate(depth=2, seq_len=64, micro_batch=4, checkpointing="full")


def with_times(made: Record) -> Record:
    measured = replace(made.measured, slices_s=(0.5, 0.25, 0.125, 0.0625))
    return replace(made, outcome=replace(made.outcome, measurement=measured))


RECORDS = [
    with_times(record(Candidate(depth=2, seq_len=64, micro_batch=4))),
    record(replace(FULL, own="attn=a/../b c"), Verdict.CRASHED, number=1, reason=HOSTILE),
    record(FULL, Verdict.SKIPPED, number=2),
    with_times(record(FULL, Verdict.PRUNED, number=3, reason="too slow")),
    with_times(record(FULL, purpose="final")),
]


def test_a_run_has_the_axes_that_matter_and_what_was_measured() -> None:
    first, final, crashed, pruned = runs_of(RECORDS, LIMITS)
    assert [run.name[:11] for run in (first, final, crashed, pruned)] == [
        "search-0000", "final-0000-", "search-0001", "search-0003",
    ]  # fmt: skip
    assert first.axes == {
        "depth": 2, "seq_len": 64, "micro_batch": 4, "checkpointing": "none", "own": "none",
    }  # fmt: skip
    assert first.step_times == {5: 0.5, 10: 0.25, 15: 0.125, 20: 0.0625}
    assert first.figures["tokens_per_s"] == 1000.0
    assert first.figures["peak_gib"] == 1.0
    assert first.figures["share_of_capacity"] == 0.25
    assert (crashed.verdict, crashed.reason, crashed.figures) == ("crashed", HOSTILE, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGERS)
def test_a_tracker_reads_what_the_runs_are(name: str, tmp_path: Path) -> None:
    runs = {run.name: run for run in runs_of(RECORDS, LIMITS)}
    place = write(name, RECORDS, LIMITS, tmp_path)
    found = READERS[name](place)
    assert len(found) == len(runs)
    for tracked, run in zip(
        (found[key] for key in sorted(found)), (runs[key] for key in sorted(runs)), strict=True
    ):
        assert tracked.axes == run.axes
        assert tracked.verdict == run.verdict
        assert tracked.figures == pytest.approx(run.figures)
        assert tracked.step_times == run.step_times
        assert tracked.reason == run.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGERS)
def test_what_was_logged_before_is_replaced(name: str, tmp_path: Path) -> None:
    write(name, RECORDS, LIMITS, tmp_path)
    place = write(name, RECORDS[:1], LIMITS, tmp_path)
    assert len(READERS[name](place)) == 1


@contextmanager
def listening() -> Iterator[tuple[str, list[object]]]:
    """An address, and who came there."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    came.append(server.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield "http://{}:{}".format(*server.getsockname()), came
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "tensorboard" else pytest.mark.slow) for n in LOGGERS],
)
def test_a_study_logs_into_its_folder_and_nowhere_else(name: str, tmp_path: Path) -> None:
    home, temporary, here = (tmp_path / each for each in ("home", "temporary", "here"))
    for folder in (home, temporary, here):
        folder.mkdir()
    recorded.write(here / "grid.csv")
    program = (
        "import sys; from autotune.commands.app import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    argv = ["--device", "replay:grid.csv", "--out", "study", "--trials", "3", "--log", name]
    with listening() as (address, came):
        subprocess.run(
            [sys.executable, "-c", program, *argv], cwd=here, check=True, capture_output=True,
            env=os.environ | {
                "PYTHONPATH": str(ROOT), "HOME": str(home), "TMPDIR": str(temporary),
                "HTTP_PROXY": address, "HTTPS_PROXY": address, "ALL_PROXY": address,
            },
        )  # fmt: skip
        assert came == []
    assert [*home.iterdir(), *temporary.iterdir()] == []
    assert {path.name for path in here.iterdir()} == {"grid.csv", "study"}
    told = [r for r in records_in(Folder(here / "study")) if r.outcome.verdict != Verdict.SKIPPED]
    assert len(READERS[name](here / "study" / LOGGERS[name].load().FOLDER)) == len(told)


def test_several_are_written_after_the_result_which_stands_where_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write(tmp_path / "grid.csv")
    monkeypatch.chdir(tmp_path)

    def noted(name: str, *args: object) -> Path:
        assert Folder(Path("study")).best.exists()
        if name == "tensorboard":
            raise OSError("no room")
        return Path("a")

    monkeypatch.setattr(loggers, "write", noted)
    assert main(["--device", "replay:grid.csv", "--out", "study", "--trials", "3",
                 "--log", "wandb-offline, tensorboard"]) == ExitCode.FOUND  # fmt: skip
    out = capsys.readouterr().out
    assert "Log: a/ has the trials for wandb-offline" in out
    assert "--log tensorboard: could not be written: no room" in out


def test_a_stopped_study_is_logged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.write(tmp_path / "grid.csv")
    monkeypatch.chdir(tmp_path)
    tell = Journal.tell

    def stopping(self: Journal, trial: Trial, *told: Any) -> None:
        tell(self, trial, *told)
        if trial.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Journal, "tell", stopping)
    assert main(["--device", "replay:grid.csv", "--out", "study", "--sampler", "grid",
                 "--log", "tensorboard"]) == ExitCode.STOPPED  # fmt: skip
    assert len(READERS["tensorboard"](tmp_path / "study" / "tensorboard")) == 3
