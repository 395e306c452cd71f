"""A study of a user's own script, from the command line to a result that starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.commands.app import main
from autotune.result.best import Best
from tests.support.launches import BIN, OWN, PLAIN, PYTHON
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow
STUDY = ["--device", "cpu", "--budget", "90s", "--trials", "1", "--finals", "1", "--out", "study",
         "--phase-args", "none"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_result_names_the_command_that_starts_it(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        f"NCCL_DEBUG=WARN {BIN}/torchrun --nproc-per-node 2 {OWN} plain --batch {{micro_batch}}"
        " --accum {grad_accum} --sample-s {wait}"
    )
    asked = ["--script", script, "--micro-batch", "2,4", "--global-batch", "16"]
    assert main([*asked, "--axis", "wait=0.02", *STUDY]) == 0
    best = Best.read(Path("study/best.json"))
    config, measured = best.config, best.measured
    assert (config.world_size, config.seq_len, config.own) == (2, 32, "wait=0.02")
    assert config.micro_batch * config.grad_accum * 2 == config.global_batch_samples == 16
    assert measured.tokens == "seen"
    assert measured.waiting_share is not None
    assert measured.tokens_per_s == pytest.approx(32 * measured.samples_per_s)
    assert best.environment["variables"]["NCCL_DEBUG"] == "WARN"
    assert best.command is not None
    assert best.command[-6:] == [
        "--batch", str(config.micro_batch), "--accum", str(config.grad_accum),
        "--sample-s", "0.02",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "Run:     " in printed
    ran = subprocess.run(
        ["study/exports/launch.sh", "--steps", "20"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("tokens/s") == 2  # of each rank


def test_a_study_that_is_killed_leaves_no_process_of_its_script(here: Path) -> None:
    script = f"{BIN}/torchrun --nproc-per-node 2 {PLAIN.partition(' ')[2]}"
    study = subprocess.Popen(
        [sys.executable, "-m", "autotune", "--script", script, "--micro-batch", "2", "--seq-len",
         "32", *STUDY],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(here)},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 60
    below: list[psutil.Process] = []
    while len(below) < 4 and time.monotonic() < until:  # supervisor, torchrun, two ranks
        below = psutil.Process(study.pid).children(recursive=True)
        time.sleep(0.1)
    assert len(below) >= 4
    study.send_signal(signal.SIGKILL)
    study.wait()
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []


def test_an_error_of_the_script_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    script = f"{PYTHON} {OWN} odd --odd raises --batch {{micro_batch}}"
    study = " ".join(STUDY).replace("--trials 1", "--trials 2").split()  # the second is its last
    assert main(["--script", script, "--micro-batch", "2,4", *study]) == 5
    said = capsys.readouterr().err
    assert said.count("Traceback (most recent call last)") == 1
    assert said.splitlines()[-1].startswith("autotune: --script: ZeroDivisionError: of the script")
    assert main(["report", "study", "--markdown"]) == 0
    assert "No result: --script: ZeroDivisionError: of the script" in capsys.readouterr().out


def test_a_batch_by_tokens_is_held_against_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    script = f"{PYTHON} {OWN} plain --batch {{tokens_per_batch}} --len 1 --sample-s 0.001"
    assert main(["--script", script, "--tokens-per-batch", "64", *STUDY]) == 0
    best = json.loads(Path("study/best.json").read_text())
    assert best["config"]["global_batch_samples"] == 64
    assert "tokens_per_batch" not in capsys.readouterr().err
