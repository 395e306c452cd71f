"""The steps for a machine with a GPU, on a CPU: their plumbing, not their numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support import scripts
from tests.support.choice import campaign
from tests.support.programs import SCRIPTS

pytestmark = pytest.mark.slow

steps = scripts.load("gpu")
called = scripts.load("shared").called


def on_gpu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, with little work and this Python."""
    command = [str(SCRIPTS / "on_gpu"), "--device", "cpu", "--small", "--out", str(folder)]
    return subprocess.run(
        [*command, *arguments], env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "through",
    [
        ("facts", "oom", "grid"),
        *campaign((("default", "fidelity"),), (("tests", "zero", "axes", "script", "peaks"),)),
    ],
)
def test_only_steps_that_are_left_run_again(tmp_path: Path, through: tuple[str, ...]) -> None:
    done = on_gpu(tmp_path, *through)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in through:
        assert f"{name}: done in" in done.stdout
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert (result["device"], result["small"]) == ("cpu", True)
    if "oom" in through:
        verdicts = json.loads((tmp_path / "oom" / "result.json").read_text())["verdicts"]
        assert verdicts["oom"] == 1
    if "grid" in through:
        assert len((tmp_path / "grid" / "grid.csv").read_text().splitlines()) > 2
    listed = dict(
        line.split(maxsplit=1) for line in on_gpu(tmp_path, "--list").stdout.splitlines()
    )
    assert listed == {name: "done" if name in through else "to do" for name in steps.STEPS}


def test_a_step_that_fails_is_said_and_the_next_one_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(bench: object) -> dict[str, object]:
        raise steps.StepError("this is wrong")

    def late(bench: object) -> dict[str, object]:
        raise steps.NotThrough

    made = {"broken": broken, "late": late, "good": lambda bench: {"seen": 1}}
    table = {name: ("for nothing", step) for name, step in made.items()}
    monkeypatch.setattr(steps, "STEPS", table)
    command = ["--device", "cpu", "--small", "--out", str(tmp_path)]
    assert called(steps.main, command) == 1
    said = capsys.readouterr().out
    assert "broken: FAILED: StepError: this is wrong" in said
    assert "late: not through yet, run it again" in said
    assert json.loads((tmp_path / "good" / "result.json").read_text())["seen"] == 1
    assert called(steps.main, [*command, "--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split(maxsplit=1)[1] for line in listed.splitlines()] == [
        "begun",
        "begun",
        "done",
    ]


def test_a_step_that_is_out_of_time_makes_no_further_probe(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as log:
        bench = steps.Bench("cpu", True, tmp_path, log, time.monotonic() - 1)
        with pytest.raises(steps.NotThrough):
            bench.python("-c", "import time; time.sleep(99)")


def test_tests_go_on_after_their_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def pytest_(bench: Any, *arguments: str) -> int:
        calls.append(arguments)
        number = len(calls)
        print(f"tests/test_it.py::test_{number} PASSED [{number}%]", file=bench.log, flush=True)
        if number == 1:
            raise steps.NotThrough
        return 0

    monkeypatch.setattr(steps.Bench, "python", pytest_)
    command = ["--device", "cpu", "--small", "--out", str(tmp_path), "tests"]
    assert called(steps.main, command) == 1
    assert called(steps.main, command) == 0
    assert [a for a in calls[1] if "deselect" in a] == ["--deselect=tests/test_it.py::test_1"]
    result = json.loads((tmp_path / "tests" / "result.json").read_text())
    assert result["counts"] == {"PASSED": 2}
    assert called(steps.main, command) == 0  # what is done begins anew
    assert not [a for a in calls[2] if "deselect" in a]


def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = on_gpu(tmp_path, "nonsense")
    assert done.returncode == 2
    assert "no step nonsense" in done.stderr


def test_readings_of_nvidia_smi_are_laid_beside_the_trials(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv"
    path.write_text(
        "2026/01/02 03:04:05.000, 10\n2026/01/02 03:04:06.500, 110\n2026/01/02 03:04:07.0"
    )
    seen = steps.smi_readings(path, pd.Timestamp(2026, 1, 2, 3, 4, 5))
    assert dict(seen) == {0.0: 10.0, 1.5: 110.0}
    trials = pd.DataFrame([
        {"key": "a", "peak_device_bytes": 99 * 2**20, "started_s": 1.0, "probe_s": 2.0},
        {"key": "b", "peak_device_bytes": None, "started_s": 3.0, "probe_s": 2.0},
    ])  # fmt: skip
    [row] = steps.beside(trials, seen).to_dict("records")
    assert row == {"key": "a", "mib": 99.0, "smi_mib": 100.0}
