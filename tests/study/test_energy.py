"""Studies for the most tokens per joule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.device.cpu import CpuDevice
from autotune.device.device import Device
from autotune.measure.runner import Job, Result
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.resolve import resolve
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.study.prober import rule_for
from autotune.wire.reports import Energy
from tests.support import rapl, recorded
from tests.support.records import MIB, space
from tests.support.scripted import ok
from tests.support.studies import Killed, Run, killing

SPACE = space()
FRUGAL = ("--objective", "tokens_per_joule")


def a_token(candidate: Candidate) -> float:
    """Joules: the least at a micro_batch of 2, where little is done in a second."""
    off = math.log2(candidate.micro_batch / 2)
    again = 1.3 if candidate.checkpointing == "full" else 1.0
    return 0.01 * candidate.depth * (1 + 0.3 * off**2) * (1 + 20 / candidate.seq_len) * again


def frugal(job: Job) -> Result:
    tokens = job.candidate.tokens
    step_s = 1e-3 * (tokens + 256)
    return ok(step_s, tokens * MIB, joules=a_token(job.candidate) * tokens)


def frugal_run(folder: Path, answer: Any = frugal, **options: Any) -> Run:
    return Run(folder, answer, SPACE, **{"objective": "tokens_per_joule"} | options)


BEST = min(SPACE.candidates, key=a_token)


@pytest.mark.parametrize("sampler", ["frontier", "tpe"])
def test_what_takes_the_least_energy_wins_though_it_is_slow(tmp_path: Path, sampler: str) -> None:
    done = frugal_run(tmp_path, sampler=sampler)
    choice = done.choice
    assert (choice.record.candidate, choice.confirmed) == (BEST, True)
    assert choice.record.measured.joules_per_token == pytest.approx(a_token(BEST))
    assert choice.certainty is not None
    assert choice.certainty.best > 0.95
    assert done.study.ledger.incumbent is not None
    assert done.study.ledger.incumbent.candidate == BEST


def test_the_frontier_finds_it_by_what_it_believes_of_energy(tmp_path: Path) -> None:
    done = frugal_run(tmp_path, sampler="frontier")
    assert BEST in done.runner.searched[: len(SPACE.candidates) // 2]


def test_no_probe_is_stopped_early_for_its_seconds(tmp_path: Path) -> None:
    jobs = frugal_run(tmp_path, trials=6).runner.jobs
    assert {job.needed_step_s for job in jobs} == {None}


def test_the_joules_of_a_step_are_shared_by_its_tokens(tmp_path: Path) -> None:
    first = frugal_run(tmp_path, trials=1, finals=1).told[0]
    joules = a_token(first.candidate) * first.candidate.tokens
    assert first.measured.joules_per_token == pytest.approx(a_token(first.candidate))
    assert first.measured.mean_power_w == pytest.approx(joules / first.measured.step.median)


def test_one_step_that_was_disturbed_does_not_count_as_what_a_token_takes(tmp_path: Path) -> None:
    def answer(job: Job) -> Result:
        found = ok(0.1, joules=2.0)  # 20 W
        step_s = [*found.reported.step_s[1:], 1.0]
        energy = Energy(20.0 * sum(step_s), "cpu")
        return replace(found, report=replace(found.reported, step_s=step_s, energy=energy))

    first = frugal_run(tmp_path, answer, trials=1, finals=1).told[0]
    assert first.measured.mean_power_w == pytest.approx(20.0)
    assert first.measured.joules_per_token == pytest.approx(2.0 / first.candidate.tokens)


def test_a_probe_whose_counter_told_nothing_is_no_result(tmp_path: Path) -> None:
    silent = SPACE.candidates[0]

    def answer(job: Job) -> Result:
        found = frugal(job)
        if job.candidate != silent or found.report is None:
            return found
        return replace(found, report=replace(found.report, energy=None))

    done = frugal_run(tmp_path, answer, sampler="grid")
    lost = [r for r in done.told if r.candidate == silent]
    assert {r.outcome.verdict for r in lost} == {Verdict.CRASHED}
    assert "counter" in lost[0].outcome.reason


def test_a_resumed_study_knows_the_energy_that_was_measured(tmp_path: Path) -> None:
    whole = frugal_run(tmp_path / "whole")
    with pytest.raises(Killed):
        frugal_run(tmp_path / "half", killing(4, frugal))
    resumed = frugal_run(tmp_path / "half")
    assert len(resumed.runner.jobs) == len(whole.runner.jobs) - 4
    assert resumed.ended == whole.ended


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_energy_is_timed_for_long_enough_to_be_counted(kind: str) -> None:
    plain, asked = (rule_for(kind, Options.of(budget_s=60, objective=of))
                    for of in ("flops", "tokens_per_joule"))  # fmt: skip
    assert plain.energy_s == 0
    assert asked.energy_s >= 0.5


# Where energy cannot be measured.


def test_the_objective_is_refused_where_there_is_no_counter(gpus: Device) -> None:
    with pytest.raises(Exception, match="tokens_per_joule: no counter; use --objective tokens_p"):
        resolve(Options.of(objective="tokens_per_joule"), gpus, 2**40, 8)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_recording_has_no_energy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    recorded.write(tmp_path / "grid.csv")
    device = f"replay:{tmp_path / 'grid.csv'}"
    out = tmp_path / "study"
    assert main(["--device", device, "--out", str(out), *FRUGAL, *more]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "autotune: --objective tokens_per_joule: the recording has no energy in it;"
        " use --objective tokens_per_s\n"
    )
    assert not out.exists()


def test_a_plan_is_refused_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpus", "80GiB", *FRUGAL]) == ExitCode.USAGE
    assert "has to be measured; use --objective tokens_per_s" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_on_a_cpu_with_rapl_says_what_a_token_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rapl.powercap(tmp_path / "powercap")
    machine = Machine(CpuDevice(powercap=folder), "cpu")
    monkeypatch.setattr("autotune.measure.testbed.open_testbed", lambda spec: machine)
    monkeypatch.chdir(tmp_path)
    small = ["--depth", "1", "--seq-len", "16,32", "--micro-batch", "1,2", "--budget", "60s",
             "--gpt", "vocab_size=256", "--checkpointing", "none"]  # fmt: skip
    with rapl.burning(folder):
        code = main([*small, "--trials", "2", "--finals", "1", "--out", "study", *FRUGAL])
    said = capsys.readouterr()
    assert (code, said.err) == (ExitCode.FOUND, "")
    assert "J a token" in said.out
    assert "energy is left out" not in said.out
    measured = json.loads((tmp_path / "study" / "best.json").read_text())["measured"]
    power_w = measured["joules_per_token"] * measured["tokens_per_s"]
    assert power_w > rapl.WATTS / 10
    table = pd.read_csv(tmp_path / "study" / "trials.csv")
    assert (table["joules_per_token"] > 0).all()
