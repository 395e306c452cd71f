"""optuna-dashboard opens what a study writes, and its table of trials says what came of each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from autotune.commands.app import main
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import records_in
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from tests.support import recorded
from tests.support.records import LIMITS, space

LARGEST = Candidate(depth=2, seq_len=64, micro_batch=8)


@contextmanager
def dashboard(storage: str) -> Iterator[str]:
    """The address of the real one, which shows `storage` meanwhile."""
    program = Path(sys.executable).with_name("optuna-dashboard")
    process = subprocess.Popen(
        [program, storage, "--host", "127.0.0.1", "--port", "0", "--quiet"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (sockets := psutil.Process(process.pid).net_connections("tcp")):
            assert process.poll() is None
            time.sleep(0.02)
        yield f"http://127.0.0.1:{sockets[0].laddr.port}"
    finally:
        process.kill()
        process.wait()


def asked(address: str) -> Any:
    with urlopen(address) as answer:
        return json.load(answer)


@pytest.fixture(
    scope="module", params=[None, pytest.param("sqlite:///studies.db", marks=pytest.mark.slow)]
)
def shown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A study with every kind of trial, as the dashboard tells of it; in its folder."""
    rows = [
        recorded.failed(c, Verdict.CRASHED, "<b>a bug</b>") if c == LARGEST else recorded.row(c)
        for c in space().candidates
    ]
    stored = [] if request.param is None else ["--storage", request.param]
    with chdir(tmp_path_factory.mktemp("shown")):
        recorded.write(Path("grid.csv"), rows)
        assert main(["--device", "replay:grid.csv", "--out", "study", "--sampler", "grid",
                     "--ceiling", "20%", "--budget", "1h", *stored]) == 0  # fmt: skip
        with dashboard(request.param or "study/optuna.log") as address:
            [study] = asked(f"{address}/api/studies")["study_summaries"]
            found: dict[str, Any] = asked(f"{address}/api/studies/{study['study_id']}")
        assert found["name"].startswith("study-" if stored else "autotune")
        yield found


def test_its_trials_are_the_study_s_with_figures_and_step_times(shown: dict[str, Any]) -> None:
    records = {r.number: r for r in records_in(Folder(Path("study"))) if r.purpose == "search"}
    assert {trial["number"] for trial in shown["trials"]} == records.keys()
    verdicts = set()
    for trial in shown["trials"]:
        outcome = records[trial["number"]].outcome
        table = {each["key"]: each["value"] for each in trial["user_attrs"]}
        verdicts.add(table["verdict"])
        assert table["verdict"] == outcome.verdict
        assert table.get("reason", "") == outcome.reason
        times = {each["step"]: each["value"] for each in trial["intermediate_values"]}
        found = outcome.measurement
        assert times == (found.step_times if found is not None else {})
        if found is None:
            continue
        figures = {
            "tokens_per_s": found.tokens_per_s,
            "samples_per_s": found.samples_per_s,
            "model_tflop_per_s": found.model_flops_per_s / 1e12,
            "step_s": found.step.median,
            "peak_gib": found.peaks.device_bytes / 2**30,
            "share_of_capacity": found.peaks.device_bytes / LIMITS.capacity_bytes,
        }
        assert {name: float(table[name]) for name in figures} == pytest.approx(figures, 1e-3)
    assert verdicts >= {"ok", "pruned", "over_ceiling", "crashed"}


def test_its_charts_say_what_is_maximised(shown: dict[str, Any]) -> None:
    assert shown["objective_names"] == ["model FLOP/s"]


def test_its_table_can_be_sorted_by_what_is_a_number(shown: dict[str, Any]) -> None:
    columns = {each["key"]: each["sortable"] for each in shown["union_user_attrs"]}
    assert {name for name, sortable in columns.items() if sortable} == {
        "tokens_per_s", "samples_per_s", "model_tflop_per_s", "step_s", "peak_gib",
        "share_of_capacity",
    }  # fmt: skip
    assert {"verdict", "reason"} <= columns.keys()
