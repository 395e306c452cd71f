"""Studies of a script of the user's own, from the command line to what they write."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from autotune.commands.exits import ExitCode
from autotune.device.cpu import cores
from autotune.result.best import Best
from autotune.show.view.study import read
from tests.support.launches import OWN, PYTHON
from tests.support.programs import TESTS, autotune

PARALLEL = TESTS / "support" / "parallel_script.py"
UNLIKE = TESTS / "support" / "unlike_script.py"
HOW = ("--device", "cpu", "--finals", "1")


def tuned(out: Path, script: str, *words: str) -> tuple[str, Best]:
    """What a study on the CPU printed, and its result. It waits for no phase."""
    how = HOW if "--phase-args" in words else (*HOW, "--phase-args", "none")
    said = autotune("--script", script, *how, "--out", out, *words).stdout
    return said, Best.read(out / "best.json")


def verify(out: Path, *words: str) -> None:
    """It may be slower than measured."""
    verified = autotune("verify", out, *words, code=None)
    assert verified.returncode in (0, 5, 6), verified.stderr


@pytest.mark.slow
def test_the_result_has_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(OWN, tmp_path / "own.py")
    shutil.copy(OWN.with_name("light.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    script = (
        f"{PYTHON} own.py plain --batch 4 --len 16 --out {{out}} --steps {{steps}} --sample-s 0.02"
    )
    out = tmp_path / "study"
    said, best = tuned(
        out, script, "--axis", "steps=100000,200000", "--budget", "90s", "--trials", "1"
    )
    config = best.config
    assert (config.micro_batch, config.seq_len, config.global_batch_tokens) == (4, 16, 64)
    assert config.optimizer == "adamw+sgd"
    assert [cell.seq_len for cell in best.cells] == [16]
    shown = read(out).trials
    assert {*zip(shown["micro_batch"], shown["seq_len"], strict=True)} == {(4, 16)}
    assert best.tokens_per_step == pytest.approx(64)
    assert best.sure is None  # its one trial was compared with nothing
    exports = {path.name for path in (out / "exports").iterdir()}
    assert exports - {"env.sh"} == {"launch.sh", "out"}  # a busy machine has variables of threads
    assert "a script's settings are its own" in " ".join(said.split())
    assert (out / "exports" / "out").is_dir()  # that the command it prints saves to
    assert "own.py" in (out / "report.html").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the script is found where it was
    verify(out)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_of_a_sample_are_known_to_who_goes_on_and_who_verifies(tmp_path: Path) -> None:
    script = f"{PYTHON} {OWN} plain --batch {{micro_batch}} --rows 2 --sample-s 0.02"
    out = tmp_path / "study"
    begun = subprocess.Popen(
        [sys.executable, "-m", "autotune", "--script", script, "--micro-batch", "2,4",
         "--sampler", "grid", "--device", "cpu", "--budget", "3m", "--finals", "1",
         "--phase-args", "none", "--out", str(out)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert begun.stdout is not None
    assert any("the model gets 2 rows a sample" in line for line in begun.stdout)
    assert any(" ok " in line for line in begun.stdout)
    begun.send_signal(signal.SIGINT)
    begun.communicate()
    assert begun.returncode == ExitCode.STOPPED
    went_on = autotune("--resume", out)
    assert "rows a sample" not in went_on.stdout  # it is known already
    trials = pd.read_csv(out / "trials.csv")
    probed = trials["verdict"].isin(["ok", "pruned"])  # where another turned out far faster
    assert set(trials["micro_batch"][probed]) == {2, 4}
    best = Best.read(out / "best.json")
    assert best.measured.rows == 2
    assert best.measured.samples_per_s * 2 * 32 == pytest.approx(best.measured.tokens_per_s)
    verify(out)


@pytest.mark.slow
def test_ranks_that_share_a_batch_do_not_win_by_counting_it_twice(tmp_path: Path) -> None:
    script = (
        f"{PYTHON} {PARALLEL} tp --ranks {{world_size}} --degree {{degree}}"
        " --batch {micro_batch} --pause-s 0.1"
    )
    _, best = tuned(
        tmp_path / "study", script, "--micro-batch", "8", "--axis", "degree=1,2",
        "--world-size", "2", "--budget", "2m",
    )  # fmt: skip
    assert best.config.own == "degree=1"
    assert (best.config.data_parallel, best.config.degrees) == (2, {"dp": 2})
    assert best.config.global_batch_samples == 16


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(cores() < 2, reason="one core is refused four ranks")
def test_degrees_are_searched_and_those_of_the_winner_are_exported(tmp_path: Path) -> None:
    """With a config by which one of them is impossible, and is named and never launched."""
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }))  # fmt: skip
    script = (
        f"{PYTHON} {PARALLEL} tp --ranks {{world_size}}"
        " --degree {tp} --batch {micro_batch} --accum {grad_accum} --pause-s 0.1"
    )
    out = tmp_path / "study"
    said, best = tuned(
        out, script, "--micro-batch", "8", "--tp", "1,2,4", "--global-batch", "32",
        "--world-size", "4", "--model-config", str(tmp_path), "--budget", "4m",
    )  # fmt: skip
    assert "without --tp 4 (tp must divide the model's 2 KV heads)" in said
    trials = pd.read_csv(out / "trials.csv")
    assert set(trials["tp"]) == {1, 2}
    config = best.config
    replicas = {1: 4, 2: 2}[config.tp]
    assert (config.data_parallel, config.grad_accum) == (replicas, 4 // replicas)
    assert config.global_batch_samples == 32
    assert (config.degrees or {}).get("tp", 1) == config.tp
    autotune("export", out, "--format", "torchtitan,megatron")
    exports = out / "exports"
    titan = (exports / "torchtitan_config.py").read_text()
    assert f"config.parallelism.tensor_parallel_degree = {config.tp}\n" in titan
    megatron = (exports / "megatron.sh").read_text()
    assert f"--tensor-model-parallel-size {config.tp}\n" in megatron
    (tmp_path / "config.json").unlink()  # the winner is known without it
    verify(out, "--steps", "40")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_global_batch_of_ranks_that_share_it_is_exported_and_verified(tmp_path: Path) -> None:
    script = (
        f"{PYTHON} {PARALLEL} tp --ranks {{world_size}}"
        " --batch {micro_batch} --len {seq_len} --config {deepspeed_config} --pause-s 0.1"
    )
    out = tmp_path / "study"
    _, best = tuned(
        out, script, "--micro-batch", "8", "--seq-len", "32", "--global-batch", "16",
        "--world-size", "2", "--zero", "1", "--budget", "4m", "--trials", "1",
    )  # fmt: skip
    config = best.config
    assert (config.data_parallel, config.grad_accum, config.global_batch_samples) == (1, 2, 16)
    for found in (best.deepspeed(), json.loads((out / "exports/deepspeed.json").read_text())):
        assert found["gradient_accumulation_steps"] == 2
        assert found["train_batch_size"] == 16
    verify(out, "--steps", "40")


@pytest.mark.skipif(sys.platform != "linux", reason="adopting orphans is Linux's")
def test_a_study_that_dies_leaves_no_process_and_no_scratch_folder(tmp_path: Path) -> None:
    scratch = [tmp_path / "out", tmp_path / "temporary"]
    for folder in scratch:
        folder.mkdir()
    request = {
        "argv": [shutil.which("sh"), "-c", "setsid sleep 600 & echo $!; exec sleep 600"],
        "folder": str(tmp_path),
        "environment": {},
        "scratch": [str(folder) for folder in scratch],
    }
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "probes.supervise"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.write(json.dumps(request) + "\n")
    supervisor.stdin.flush()
    orphan = supervisor.stdout.readline().strip()
    supervisor.stdin.close()  # as the kernel does for a study that was killed
    assert supervisor.wait(timeout=60) == 0
    supervisor.stdout.close()
    assert not Path(f"/proc/{orphan}").exists()
    assert not any(folder.exists() for folder in scratch)


# Else the C library may keep what an evaluation has freed, which training's peak then has.
PHASED = (
    f"MALLOC_MMAP_THRESHOLD_=65536 {PYTHON} {TESTS / 'support' / 'phased_script.py'}"
    " --batch {micro_batch}"
)
SOON = ["--phase-args", "--eval-every 5 --save-every 5"]


SHORT = ["--micro-batch", "4", "--budget", "120s"]


def phased(out: Path, script: str, *words: str, capacity: str = "2GiB") -> tuple[str, Best]:
    """What a short study of the script that evaluates and saves says, and its result."""
    said, best = tuned(out, f"{PHASED} {script}", *SHORT, "--capacity", capacity, *words)
    return " ".join(said.split()), best


@pytest.mark.slow
def test_what_a_script_was_not_seen_to_do_is_said(tmp_path: Path) -> None:
    said, best = phased(tmp_path / "study", "")
    assert best.unseen == ("evaluate", "save")
    assert "Not seen: evaluation and saving" in said
    assert "Not seen" in (tmp_path / "study" / "report.html").read_text()


@pytest.mark.slow
def test_a_candidate_that_breaks_only_between_steps_does_not_win(tmp_path: Path) -> None:
    """While it saves. What breaks in evaluation is verified below."""
    how = (*HOW, *SHORT, *SOON, "--capacity", "1GiB", "--out", tmp_path / "study")
    script = f"{PHASED} --save-every 90000 --copies 2000"
    autotune("--script", script, *how, code=ExitCode.NOTHING_FITS)
    trials = pd.read_csv(tmp_path / "study" / "trials.csv")
    finals, lost = (trials[trials["kind"] == kind].iloc[0] for kind in ("final", "phases"))
    assert finals["verdict"] == "ok"  # by the user's own command
    assert lost["verdict"] in ("oom", "over_ceiling")
    assert "while saving" in lost["reason"]


@pytest.mark.slow
def test_evaluation_and_saving_are_reached_by_arguments_of_their_own(tmp_path: Path) -> None:
    """Evaluations leave training no time, and cost no speed: they would take most of a final."""
    script = "--eval-every 90000 --eval-batch 3000 --save-every 90000 --copies 2"
    often = ["--phase-args", "--eval-every 3 --save-every 3"]
    said, best = phased(tmp_path / "study", script, *often)
    assert (best.unseen, "Not seen" in said) == ((), False)
    assert best.unconfirmed != "its finals failed"
    phases = best.measured.phases
    assert phases is not None
    evaluation = phases["evaluate"]
    assert evaluation.peak_bytes.device > phases["train"].peak_bytes.device
    assert best.measured.peak_bytes.device == max(p.peak_bytes.device for p in phases.values())
    assert evaluation.seconds is not None
    assert evaluation.count is not None
    assert best.measured.step_s.median < evaluation.seconds / evaluation.count
    assert best.command is not None
    assert "90000" in best.command  # it is the user's own
    assert "3" not in best.command


@pytest.mark.slow
def test_verify_does_not_hold_where_evaluation_breaks(tmp_path: Path) -> None:
    script = "--eval-every {every} --eval-batch 6000 --save-every 100000 --copies 1"
    out = tmp_path / "study"
    phased(out, script, "--set", "every=90000", capacity="1GiB")
    changed = json.loads((out / "best.json").read_text())
    changed["provenance"]["options"]["phase_args"] = "--eval-every 5 --save-every 5"
    (out / "best.json").write_text(json.dumps(changed))
    verified = autotune("verify", out, "--steps", "40", code=ExitCode.NOT_VERIFIED)
    assert "in evaluation" in verified.stdout
    assert "training until it evaluates and saves, at most 150 s" in verified.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unlike_ranks_beat_equal_ones_where_memory_binds(tmp_path: Path) -> None:
    script = f"{PYTHON} {UNLIKE} {{micro_batch_per_rank}}"
    out = tmp_path / "study"
    _, best = tuned(
        out, script, "--micro-batch-per-rank", "8+8,8+128,128+128",
        "--world-size", "2", "--capacity", "640MiB,2GiB", "--sampler", "grid", "--budget", "9m",
    )  # fmt: skip
    trials = pd.read_csv(out / "trials.csv").query("kind == 'search'")
    verdicts = dict(zip(trials["micro_batch_per_rank"], trials["verdict"], strict=True))
    assert verdicts["128+128"] in ("over_ceiling", "oom")
    assert best.config.micro_batch_per_rank == "8+128"
    assert best.config.global_batch_samples == 136
    assert best.limits.rank_capacities == (640 * 2**20, 2**31)
    peaks = best.measured.rank_peak_bytes
    assert peaks is not None
    assert peaks[0] <= 0.8 * 640 * 2**20 < peaks[1] <= 0.8 * 2**31
    assert "8,128" in (out / "exports" / "launch.sh").read_text()
