"""`python -m autotune` as a user runs it: whole studies in processes of their own."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jsonschema import Draft202012Validator

from autotune.result.best import json_schema
from autotune.result.folder.folder import Folder
from autotune.result.folder.journal import past_in
from autotune.space.axes import AXES
from tests.support.choice import campaign
from tests.support.programs import MEASURED_AGAIN, ranks_of

pytestmark = pytest.mark.slow

TINY = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2",
        "--gpt", "vocab_size=256", "--checkpointing", "none"]  # fmt: skip
PATIENCE_S = 240.0
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
# One build, so that the ranks of the first trial are those of the next ones too.
LONG = ["--device", "cpu", "--depth", "2", "--checkpointing", "none", "--budget", "100s"]


class Command:
    """A running `python -m autotune`."""

    def __init__(
        self, folder: Path, *arguments: str, stdout: int = subprocess.PIPE, **environment: str
    ) -> None:
        self.out = folder / "study"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotune", "--out", str(self.out), *arguments],
            cwd=folder,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        stdout, stderr = self.process.communicate(timeout=1000)
        return self.process.returncode, stdout, stderr

    def ranks(self) -> list[psutil.Process]:
        return ranks_of(self.process.pid)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """What `what` returns as soon as it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := what():
                return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        raise AssertionError("waited in vain")

    def wait_for_ranks(self) -> list[psutil.Process]:
        found: list[psutil.Process] = self.wait_for(self.ranks)
        return found

    def trials(self) -> list[str]:
        """Verdicts so far."""
        table = self.out / "trials.csv"
        lines = table.read_text().splitlines() if table.exists() else []
        return [row["verdict"] or "" for row in csv.DictReader(lines)]

    def best(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "best.json").read_text())
        return found

    def found(self) -> dict[str, Any]:
        """The result of what ended well."""
        code, _, stderr = self.end()
        assert code == 0, stderr
        return self.best()

    def fitted(self) -> list[dict[str, str]]:
        """The rows of trials that fit, after it ended well."""
        self.found()
        rows = list(csv.DictReader((self.out / "trials.csv").open()))
        return [row for row in rows if row["verdict"] in ("ok", "pruned")]


Run = Callable[..., Command]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    commands: list[Command] = []

    def one(*arguments: str, **how: Any) -> Command:
        commands.append(Command(tmp_path, *arguments, **how))
        return commands[-1]

    yield one
    for command in commands:
        command.process.kill()
        command.process.wait()


def gone(processes: list[psutil.Process], within_s: float) -> bool:
    """Whether all of `processes` have ended in time."""
    return not psutil.wait_procs(processes, timeout=within_s)[1]


def test_the_main_job_writes_a_confirmed_best_json_that_validates(run: Run) -> None:
    command = run("--budget", "100s", "--trials", "2", "--finals", "2", *TINY)
    code, stdout, stderr = command.end()
    assert (code, stderr) == (0, "")
    best = command.best()
    Draft202012Validator(json_schema()).validate(best)
    assert best["unconfirmed"] in MEASURED_AGAIN
    assert best["config"]["depth"] == 1
    assert best["measured"]["peak_bytes"]["device"] < best["limits"]["limit_bytes"]
    assert best["trials"]["ok"] + best["trials"]["pruned"] == 2
    assert str(command.out / "best.json") in stdout
    assert sorted(p.name for p in command.out.iterdir()) == [
        "best.json", "exports", "logs", "manifest.json", "optuna.log", "report.html", "trials.csv",
    ]  # fmt: skip


def test_a_study_whose_output_nobody_reads_any_more_ends_as_it_would_have(run: Run) -> None:
    command = run("--budget", "100s", "--trials", "1", "--finals", "1", *TINY)
    assert command.process.stdout is not None
    command.process.stdout.readline()
    command.process.stdout.close()
    assert command.process.stderr is not None
    assert command.process.stderr.read() == ""
    assert command.process.wait() == 0
    assert command.best()["unconfirmed"] in MEASURED_AGAIN


def test_an_error_that_nobody_reads_keeps_its_exit_code(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        command = [sys.executable, "-m", "autotune", "--budget", "soon"]
        assert subprocess.run(command, cwd=tmp_path, stderr=pipe, check=False).returncode == 2


def test_a_study_stays_within_five_seconds_of_its_budget(run: Run, tmp_path: Path) -> None:
    command = run("--budget", "15s", "--device", "cpu")
    code, _, stderr = command.end()
    took_s = time.monotonic() - command.began
    assert code in (0, 5), stderr  # a slow machine may have measured nothing by then
    assert past_in(Folder(command.out)).spent_s < 20
    # Python starts before the budget's clock and ends after the study: slowly on a busy machine.
    began = time.monotonic()
    plan = [sys.executable, "-m", "autotune", "--dry-run", "--device", "cpu"]
    subprocess.run(plan, cwd=tmp_path, check=True, capture_output=True)
    assert took_s < 20 + time.monotonic() - began


def test_ranks_that_cannot_run_are_code_5_with_the_cause(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('torch is broken')\n")
    code, _, stderr = run("--budget", "60s", *TINY, PYTHONPATH=str(tmp_path / "broken")).end()
    assert code == 5
    assert "ImportError: torch is broken" in stderr
    assert stderr.count("\n") == 1


def test_a_study_that_is_killed_leaves_no_rank_that_was_stopped(run: Run) -> None:
    command = run(*LONG)
    command.wait_for(command.trials)
    ranks = command.wait_for_ranks()
    for rank in ranks:
        rank.suspend()
    command.process.send_signal(signal.SIGKILL)
    assert gone(ranks, within_s=5)


@pytest.mark.parametrize("number", [
    signal.SIGINT, *campaign(signal.SIGTERM, signal.SIGHUP)
])  # fmt: skip
def test_a_first_signal_writes_the_best_and_is_code_4(run: Run, number: signal.Signals) -> None:
    command = run(*LONG)
    command.wait_for(lambda: "ok" in command.trials())
    ranks = command.ranks()
    command.process.send_signal(number)
    code, _, stderr = command.end()
    assert code == 4
    assert number.name in stderr
    assert command.best()["confirmed"] is False
    assert "You stopped the search early" in (command.out / "report.html").read_text("utf-8")
    assert gone(ranks, within_s=5)


def test_a_signal_before_anything_fitted_is_exit_code_5(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.path.basename(os.readlink('/proc/self/fd/1')).startswith('group'):\n"
        "    time.sleep(300)\n"
    )
    command = run("--budget", "100s", *TINY, PYTHONPATH=str(tmp_path))
    ranks = command.wait_for_ranks()
    command.process.send_signal(signal.SIGINT)
    code, _, stderr = command.end()
    assert code == 5
    assert "SIGINT before anything fitted" in stderr
    assert gone(ranks, within_s=5)


def interrupt_until_it_ends(command: Command) -> None:
    """Send SIGINT once more every 0.1 s: two that are pending at once are delivered as one."""
    until = time.monotonic() + 5
    while command.process.poll() is None:
        assert time.monotonic() < until
        command.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(timeout=0.1)


def test_a_second_ctrl_c_gives_the_terminal_back_and_leaves_no_process(run: Run) -> None:
    ours, terminal = pty.openpty()
    os.set_blocking(ours, False)
    command = run("--budget", "100s", "--device", "cpu", stdout=terminal, TERM="xterm")
    os.close(terminal)
    shown = b""

    def ranks() -> list[psutil.Process]:
        nonlocal shown
        shown += read(ours)  # so that the study never waits for us
        return command.ranks()

    for rank in (found := command.wait_for(ranks)):
        rank.suspend()  # it does not react, so that the first signal takes a while
    interrupt_until_it_ends(command)
    shown += read(ours)
    os.close(ours)
    assert command.process.returncode == 128 + signal.SIGINT
    assert gone(found, within_s=5)
    assert 0 < shown.rfind(HIDE_CURSOR) < shown.rfind(SHOW_CURSOR)


def read(terminal: int) -> bytes:
    """What has been written to `terminal` since the last call."""
    found = b""
    with contextlib.suppress(OSError):  # there is no more, or nobody is there to write it
        while part := os.read(terminal, 4096):
            found += part
    return found


@pytest.mark.parametrize("flags", [[], ["--dtype", "fp32", "--checkpointing", "full"]])
@pytest.mark.gpu
def test_the_main_job_runs_on_cuda(run: Run, flags: list[str]) -> None:
    shape = ["--depth", "2", "--seq-len", "256", "--micro-batch", "1,2,4", "--finals", "1"]
    command = run("--budget", "90s", "--device", "cuda:0", *shape, *flags)
    best = command.found()
    assert best["fingerprint"]["kind"] == "cuda"
    peaks = best["measured"]["peak_bytes"]
    assert peaks["device"] >= peaks["reserved"] >= peaks["allocated"] > 0


@pytest.mark.gpu
def test_the_most_tokens_per_joule_are_searched_on_cuda(run: Run) -> None:
    shape = ["--depth", "2", "--seq-len", "256", "--micro-batch", "1,4", "--finals", "1"]
    how = ["--budget", "90s", "--device", "cuda:0", "--objective", "tokens_per_joule"]
    measured = run(*how, *shape).found()["measured"]
    # Of one board: idle ones take tens of watts, and none takes two thousand.
    assert 10 < measured["joules_per_token"] * measured["tokens_per_s"] < 2000


@pytest.mark.gpu
@pytest.mark.campaign  # DeepSpeed compiles CPUAdam for minutes where its cache is empty
@pytest.mark.timeout(900)
def test_every_stage_and_offload_trains_on_one_cuda_device(run: Run) -> None:
    shape = ["--depth", "4", "--seq-len", "256", "--micro-batch", "2", "--checkpointing", "none"]
    how = ["--zero", "0,1,2,3", "--offload", "none,optimizer,all", "--sampler", "grid"]
    how += ["--engine", "deepspeed", "--finals", "1"]
    fitted = run("--budget", "15m", "--device", "cuda:0", *shape, *how).fitted()
    trained = {(row["zero_stage"], row["offload"]) for row in fitted}
    everywhere = {(stage, "none") for stage in "0123"} | {(stage, "optimizer") for stage in "123"}
    assert trained == everywhere | {("3", "all")}


@pytest.mark.parametrize(
    "axes",
    [
        {"compile": "off,on"}, {"checkpointing": "none,selective,host,1/2"},
        {"allocator": "default,expandable", "loss": "whole,chunked", "param_dtype": "auto,bf16"},
    ],
    ids="-".join,
)  # fmt: skip
@pytest.mark.gpu
def test_every_axis_is_searched_on_cuda(run: Run, axes: dict[str, str]) -> None:
    shape = ["--depth", "4", "--seq-len", "512", "--micro-batch", "4", "--finals", "1"]
    given = {"checkpointing": "none"} | axes
    flags = [each for name, values in given.items() for each in (AXES[name].flag, values)]
    command = run("--budget", "4m", "--device", "cuda:0", "--sampler", "grid", *flags, *shape)
    fitted = command.fitted()
    for name, values in axes.items():
        assert {row[name] for row in fitted} == set(values.split(","))


def test_a_study_over_new_axes_compiles_and_says_so(run: Run) -> None:
    new = ["--attention", "sdpa,eager", "--loss", "whole,chunked", "--compile", "on"]
    shape = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "2"]
    shape += ["--gpt", "vocab_size=256", "--checkpointing", "selective", "--finals", "1"]
    command = run("--budget", "4m", "--trials", "1", *shape, *new)
    command.wait_for(lambda: "ok" in command.trials())
    command.process.send_signal(signal.SIGINT)  # each final would compile again
    code, stdout, stderr = command.end()
    assert code == 4, stderr
    best = command.best()
    assert (best["config"]["compile"], best["config"]["checkpointing"]) == ("on", "selective")
    assert best["measured"]["compile_s"] > 0.5
    assert "Compiling took" in " ".join(stdout.split())
    rows = list(csv.DictReader((command.out / "trials.csv").open()))
    assert all(float(row["group_start_s"]) > float(row["compile_s"]) > 0.5 for row in rows)
    assert {row["kernels"] for row in rows} == {""}  # compiled code calls them unseen
