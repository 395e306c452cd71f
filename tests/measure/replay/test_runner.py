"""Recorded grids in the place of devices: time that is not real, numbers that are."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.errors import UsageError
from autotune.measure.replay import grid
from autotune.measure.replay.grid import GridRow
from autotune.measure.replay.runner import Replay
from autotune.measure.runner import Job
from autotune.space.candidate import Candidate
from autotune.space.outcome import Verdict
from autotune.space.workload import GlobalBatch, Workload
from autotune.wire.budget import VirtualTime
from autotune.wire.reports import Energy
from autotune.wire.stopping import Phase
from tests.support import defaults
from tests.support.recorded import CALM, START_S, failed, row, step_s, write
from tests.support.records import MIB, space

RULE = defaults.rule(warmup_limit_s=1e3, timed_limit_s=1e3)
A = Candidate(depth=2, seq_len=64, micro_batch=1)
LONGER = Candidate(depth=2, seq_len=128, micro_batch=1)
DEEPER = Candidate(depth=4, seq_len=64, micro_batch=1)
NEVER = math.inf
TEST_LIMIT_S = 300.0
"""The time limit of one test: what takes longer did not wait."""


def job(candidate: Candidate, **asked: Any) -> Job:
    return defaults.job(candidate, rule=RULE, **asked)


class Machine:
    """A replay of `rows`, and its clock."""

    def __init__(
        self, folder: Path, rows: list[GridRow], seed: int = 0, capacity_mib: int = 4096,
        workload: Workload | None = None,
    ) -> None:  # fmt: skip
        recorded = grid.read(write(folder / "g.csv", rows, workload=workload))
        limits = replace(recorded.limits, capacity_bytes=capacity_mib * MIB)
        self.time = VirtualTime()
        self.told: list[tuple[Phase, int, float]] = []
        self.runner = Replay(recorded, limits, self.time, seed, self._tell)

    def _tell(self, phase: Phase, steps: int) -> None:
        self.told.append((phase, steps, self.time()))

    def took_s(self, asked: Job) -> float:
        began_s = self.time()
        self.runner.run(asked, NEVER)
        return self.time() - began_s


Machines = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> Machines:
    def one(*rows: GridRow, **more: Any) -> Machine:
        return Machine(tmp_path, list(rows), **more)

    return one


PROBE_S = (3 + 5) * step_s(A)
"""All warm-up steps that were recorded, and of the timed ones as many as the rule asks for."""


# Time.


def test_a_probe_takes_its_group_s_start_and_its_steps(machine: Machines) -> None:
    assert machine(row(A)).took_s(job(A)) == pytest.approx(START_S + PROBE_S)


def test_phases_are_told_as_their_time_passes(machine: Machines) -> None:
    replay = machine(row(A))
    replay.took_s(job(A))
    warm_s = START_S + 3 * step_s(A)
    assert replay.told == [
        (Phase.BUILD, 0, 0.0),
        (Phase.WARMUP, 0, START_S),
        (Phase.TIMED, 0, pytest.approx(warm_s)),
        (Phase.TIMED, 5, pytest.approx(START_S + PROBE_S)),
    ]
    del replay.told[:]
    replay.took_s(job(A))
    assert [phase for phase, *_ in replay.told] == [Phase.WARMUP, Phase.TIMED, Phase.TIMED]


def test_a_live_group_is_not_started_again(machine: Machines) -> None:
    replay = machine(row(A), row(LONGER))
    replay.took_s(job(LONGER))
    assert replay.runner.live_build == A.build
    assert replay.took_s(job(A)) == pytest.approx(PROBE_S)


@pytest.mark.parametrize("between", ["fresh", "another build", "retired"])
def test_a_new_group_costs_its_start(machine: Machines, between: str) -> None:
    replay = machine(row(A), row(DEEPER))
    replay.took_s(job(A))
    if between == "another build":
        replay.took_s(job(DEEPER))
    elif between == "retired":
        replay.runner.retire(NEVER)
    took_s = replay.took_s(job(A, fresh=between == "fresh"))
    assert took_s == pytest.approx(START_S + PROBE_S)


def test_a_shape_is_compiled_once_in_a_group(machine: Machines) -> None:
    compiled = []
    for candidate in (A, LONGER):
        made = row(replace(candidate, compile="on"))
        assert made.report is not None
        compiled.append(replace(made, report=replace(made.report, compile_s=7.0)))
    replay = machine(*compiled)
    first, longer = (each.candidate for each in compiled)
    assert replay.took_s(job(first)) == pytest.approx(START_S + 7.0 + PROBE_S)
    assert replay.took_s(job(first)) == pytest.approx(PROBE_S)
    assert replay.took_s(job(longer)) > 7.0
    replay.runner.retire(NEVER)
    assert replay.took_s(job(first)) == pytest.approx(START_S + 7.0 + PROBE_S)


def test_results_say_which_probe_started_a_group(machine: Machines) -> None:
    runner = machine(row(A)).runner
    first, second = runner.run(job(A), NEVER), runner.run(job(A), NEVER)
    assert (first.group_start_s, first.warm) == (START_S, False)
    assert (second.group_start_s, second.warm) == (0.0, True)


def test_a_start_takes_the_median_of_those_of_its_build(machine: Machines) -> None:
    starts_s = [row(A, start_s=s) for s in (0.0, 9.0, 2.0, 4.0)]
    runner = machine(*starts_s, row(DEEPER, start_s=99.0)).runner
    assert runner.run(job(A), NEVER).group_start_s == 4.0


def test_a_start_that_was_not_recorded_takes_what_others_took(machine: Machines) -> None:
    runner = machine(row(A, start_s=0.0), row(DEEPER, start_s=7.0)).runner
    assert runner.run(job(A), NEVER).group_start_s == 7.0


def test_time_between_steps_is_spread_over_them(machine: Machines) -> None:
    took_s = machine(row(A, overhead=1.5)).took_s(job(A))
    assert took_s == pytest.approx(START_S + 1.5 * PROBE_S)


def test_a_report_s_phases_are_what_the_clock_was_charged(machine: Machines) -> None:
    replay = machine(row(A, overhead=1.5))
    result = replay.runner.run(job(A), NEVER)
    steps_s = result.reported.warmup_s + result.reported.timed_s
    assert replay.time() == pytest.approx(result.group_start_s + steps_s)


def test_a_part_of_a_schedule_takes_its_part_of_the_time(machine: Machines) -> None:
    accumulating = replace(space().workload, global_batch=GlobalBatch(8, "samples"))
    replay = machine(row(A), workload=accumulating)
    result = replay.runner.run(job(A, grad_accum=8, micro_steps=2), NEVER)
    assert result.reported.step_s == pytest.approx([step_s(A)] * 5)
    assert replay.time() == pytest.approx(START_S + PROBE_S / 4)


# What a probe comes to.


def test_a_probe_reports_the_steps_it_walked_and_what_was_seen(machine: Machines) -> None:
    result = machine(row(A)).runner.run(job(A), NEVER)
    assert (result.verdict, result.reason) == (Verdict.OK, "")
    assert result.reported.step_s == pytest.approx([step_s(A)] * 5)
    assert (result.reported.peaks.device_bytes, result.reported.conditions) == (64 * MIB, CALM)


def test_energy_is_that_of_the_steps_it_walked(machine: Machines) -> None:
    result = machine(row(A, ([1.0] * 3, [2.0] * 9), joules=900.0)).runner.run(job(A), NEVER)
    assert result.reported.step_s == [2.0] * 5
    assert result.reported.energy == Energy(500.0, "recorded")
    hopeless = machine(row(A, joules=900.0)).runner.run(job(A, needed_step_s=1e-6), NEVER)
    assert hopeless.reported.energy is None  # it was stopped before anything was timed


def test_recorded_energy_is_replayed(tune: Tune, refused: Refused, tmp_path: Path) -> None:
    rows = [row(c, joules=1.0 if c == A else 1e4) for c in space().candidates]
    write(tmp_path / "g.csv", rows)
    argv = "--objective", "tokens_per_joule"
    assert tune(*argv, "--sampler", "grid", "--out", "t")[0] == ExitCode.FOUND
    found = best("t")
    assert found["config"]["micro_batch"] == A.micro_batch
    # 64 tokens in each of 6 steps of 1 J together.
    assert found["measured"]["joules_per_token"] == pytest.approx(1 / (6 * 64))
    write(tmp_path / "g.csv", [*rows[1:], row(rows[0].candidate)])
    assert "no energy" in refused(*argv)


def test_a_recording_longer_than_the_rule_is_walked_in_part(machine: Machines) -> None:
    result = machine(row(A, ([1.0] * 9, [2.0] * 9))).runner.run(job(A), NEVER)
    assert (result.reported.warmup_step_s, result.reported.step_s) == ([1.0] * 3, [2.0] * 5)


def test_a_recording_shorter_than_the_rule_is_walked_whole(machine: Machines) -> None:
    result = machine(row(A, ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]))).runner.run(job(A), NEVER)
    assert result.verdict == Verdict.OK
    assert result.reported.warmup_step_s == result.reported.step_s == [1.0, 2.0, 4.0]


def test_a_hopeless_probe_ends_early_and_costs_less(machine: Machines) -> None:
    replay = machine(row(A))
    result = replay.runner.run(job(A, needed_step_s=step_s(A) / 2), NEVER)
    assert result.verdict == Verdict.PRUNED
    assert replay.time() == pytest.approx(START_S + 3 * step_s(A))


def test_repeated_probes_come_upon_every_repeat(machine: Machines) -> None:
    repeats = [row(A, ([s] * 3, [s] * 5)) for s in (1.0, 2.0, 3.0)]
    runner = machine(*repeats).runner
    reports = [runner.run(job(A), NEVER).report for _ in range(50)]
    assert {report.step_s[0] for report in reports if report} == {1.0, 2.0, 3.0}


def test_the_seed_decides_which_repeat_is_replayed(machine: Machines) -> None:
    repeats = [row(A, ([s] * 3, [s] * 5)) for s in (1.0, 2.0, 3.0)]

    def series(seed: int) -> list[float]:
        replay = machine(*repeats, seed=seed)
        return [replay.took_s(job(A)) for _ in range(20)]

    assert series(1) == series(1)
    assert series(1) != series(2)


def test_a_peak_over_the_capacity_is_out_of_memory_and_ends_the_group(machine: Machines) -> None:
    replay = machine(row(A), row(LONGER), capacity_mib=100)
    replay.took_s(job(A))
    began_s = replay.time()
    result = replay.runner.run(job(LONGER), NEVER)
    assert (result.verdict, result.report, result.peaks) == (Verdict.OOM, None, None)
    assert result.reason == "rank 0 ran out of memory in phase warmup"
    assert replay.time() - began_s == pytest.approx(step_s(LONGER))
    assert replay.runner.live_build is None
    assert replay.took_s(job(A)) == pytest.approx(START_S + PROBE_S)


def test_a_recorded_failure_is_replayed_and_ends_the_group(machine: Machines) -> None:
    replay = machine(failed(A, Verdict.CRASHED, "rank 1 left with exit code 3"))
    result = replay.runner.run(job(A), NEVER)
    assert (result.verdict, result.report) == (Verdict.CRASHED, None)
    assert result.reason == "rank 1 left with exit code 3"
    assert (replay.time(), replay.runner.live_build) == (START_S, None)


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 1.0, START_S + PROBE_S / 2])
def test_a_probe_past_the_deadline_is_skipped(machine: Machines, left_s: float) -> None:
    replay = machine(row(A))
    result = replay.runner.run(job(A), left_s)
    assert (result.verdict, result.report) == (Verdict.SKIPPED, None)
    assert result.reason == "the budget ended during this probe"
    assert replay.time() == pytest.approx(max(0.0, left_s))
    assert result.group_start_s == pytest.approx(min(max(0.0, left_s), START_S))
    assert replay.runner.live_build is None


def test_a_candidate_that_was_not_recorded_is_refused(machine: Machines) -> None:
    with pytest.raises(UsageError, match=r"^d2-s128-b1-z0-none-none: not recorded in "):
        machine(row(A)).runner.run(job(LONGER), NEVER)


def test_another_schedule_than_the_recorded_one_is_refused(machine: Machines) -> None:
    with pytest.raises(UsageError, match=r"with grad_accum 1, not 2$"):
        machine(row(A)).runner.run(job(A, grad_accum=2), NEVER)


# The whole command line.

Ran = tuple[int, str, str]
Tune = Callable[..., Ran]
Refused = Callable[..., str]


@pytest.fixture
def tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tune:
    """Runs a command line on `g.csv`: exit code, stdout, stderr."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def tune(*argv: str, file: str = "g.csv") -> Ran:
        return (main(["--device", f"replay:{file}", *argv]), *capsys.readouterr())

    return tune


@pytest.fixture
def refused(tune: Tune, tmp_path: Path) -> Refused:
    """Runs a command line that is wrong; its message, once the rules on it hold."""

    def refused(*argv: str, file: str = "g.csv") -> str:
        before = set(tmp_path.iterdir())
        code, out, err = tune(*argv, "--out", "new", file=file)
        assert (code, out) == (ExitCode.USAGE, "")
        assert re.fullmatch(r"autotune: [^\n]+\n", err), err
        assert set(tmp_path.iterdir()) == before
        return err.removeprefix("autotune: ").removesuffix("\n")

    return refused


def best(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "best.json").read_text())
    return found


def test_a_study_finds_the_best_recorded_without_waiting(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    code, _, err = tune("--budget", "30m", "--sampler", "tpe", "--out", "mine")
    assert (code, err) == (ExitCode.FOUND, "")
    document = best("mine")
    config = document["config"]
    found = (config["depth"], config["seq_len"], config["micro_batch"], config["checkpointing"])
    assert found == (4, 128, 8, "none")
    assert document["confirmed"]
    assert TEST_LIMIT_S < document["provenance"]["elapsed_s"] < 1800


def test_a_replay_says_so_on_the_terminal_and_in_best_json(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    _, out, _ = tune("--trials", "2", "--out", "mine")
    said = "replay of g.csv, recorded on a processor"
    assert " ".join(out.split()).count(said) == 2
    assert f"{said}: nothing was measured now" in " ".join(out.split())
    fingerprint = best("mine")["fingerprint"]
    assert fingerprint["replayed"] == "g.csv"
    assert fingerprint["devices"]["name"] == "a processor"
    assert fingerprint["software"] == {"torch": "2.9.0"}


def test_the_elapsed_time_of_a_trial_is_virtual(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv", [row(A, ([60.0] * 3, [60.0] * 5))])
    _, out, _ = tune("--out", "mine")
    assert re.search(r"^ 8:03   0 search ", out, re.MULTILINE)
    assert pd.read_csv("mine/trials.csv").probe_s[0] == pytest.approx(8 * 60.0 + START_S)


def test_the_same_seed_gives_the_same_study(tune: Tune, tmp_path: Path) -> None:
    noisy = [
        row(c, ([s] * 3, [s] * 6))
        for c in space().candidates
        for s in (step_s(c) * factor for factor in (0.9, 1.0, 1.1))
    ]
    write(tmp_path / "g.csv", noisy)
    for name, seed in [("a", "1"), ("b", "1"), ("c", "2")]:
        assert tune("--budget", "5m", "--seed", seed, "--out", name)[0] == ExitCode.FOUND
    a, b, c = (Path(name, "trials.csv").read_text() for name in "abc")
    assert a == b
    assert a != c
    assert {**best("a"), "provenance": None} == {**best("b"), "provenance": None}


def test_parallel_probes_end_sooner_and_are_reproducible(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    for name, slots in [("one", "1"), ("a", "4"), ("b", "4")]:
        how = ("--sampler", "grid", "--parallel", slots, "--out", name)
        assert tune("--budget", "30m", *how)[0] == ExitCode.FOUND
    one, a, b = (pd.read_csv(Path(name, "trials.csv")) for name in ("one", "a", "b"))
    pd.testing.assert_frame_equal(a, b)
    assert sorted(a.key[a.kind == "search"]) == sorted(one.key[one.kind == "search"])
    ends = [(each.started_s + each.probe_s)[each.kind == "search"] for each in (one, a)]
    assert ends[1].is_monotonic_increasing  # what ends first is told first
    assert ends[1].max() < ends[0].max() / 2
    assert best("a")["config"] == best("one")["config"]


def test_several_probes_at_once_go_on_after_an_interruption(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    how = ("--sampler", "grid", "--parallel", "4", "--out", "mine")
    assert tune("--budget", "30s", *how)[0] == ExitCode.FOUND
    before = len(pd.read_csv("mine/trials.csv"))
    assert main(["--resume", "mine", "--budget", "30m"]) == ExitCode.FOUND
    after = pd.read_csv("mine/trials.csv")
    assert len(after) > before
    tried = after[(after.kind == "search") & (after.verdict != "skipped")]
    assert sorted(tried.key) == sorted(c.key for c in space().candidates)


def test_a_recording_has_no_devices_to_count(refused: Refused, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    assert refused("--parallel", "auto") == (
        "--parallel auto: g.csv has no devices to count; write a number, e.g. --parallel 4"
    )


def test_what_is_not_asked_for_is_as_recorded(tune: Tune, tmp_path: Path) -> None:
    workload = defaults.workload(
        width=128,
        vocab_size=777,
        dtype="bf16",
        engine="deepspeed",
        world_size=2,
        global_batch=GlobalBatch(8, "samples"),
    )
    recorded = [
        row(Candidate(depth=d, seq_len=64, micro_batch=2, zero_stage=z, optimizer="muon"))
        for d in (2, 5)
        for z in (2, 3)
    ]
    write(tmp_path / "g.csv", recorded, workload=workload)
    assert tune("--out", "mine", "--budget", "5m")[0] == ExitCode.FOUND
    config = best("mine")["config"]
    names = ("width", "vocab_size", "dtype", "optimizer", "engine", "world_size")
    assert [config[name] for name in names] == [
        128, 777, "bf16", "muon", "deepspeed", 2,
    ]  # fmt: skip
    assert (config["grad_accum"], config["micro_batch"]) == (2, 2)
    assert len(pd.read_csv("mine/trials.csv").query("kind == 'search'")) == 4


def test_an_axis_can_be_narrowed(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    narrow = ("--depth", "2", "--seq-len", "128", "--checkpointing", "full")
    tune(*narrow, "--sampler", "grid", "--out", "mine")
    trials = pd.read_csv("mine/trials.csv")
    assert set(trials.depth) == {2}
    assert set(trials.micro_batch) == {1, 2, 4, 8}
    assert set(trials.checkpointing) == {"full"}


def test_a_partial_recording_is_searched_as_far_as_it_goes(tune: Tune, tmp_path: Path) -> None:
    write(
        tmp_path / "g.csv",
        [row(A), row(DEEPER), row(Candidate(depth=2, seq_len=128, micro_batch=8))],
    )
    assert tune("--sampler", "grid", "--out", "mine")[0] == ExitCode.FOUND
    trials = pd.read_csv("mine/trials.csv").query("kind == 'search'")
    assert sorted(trials.key) == sorted(
        c.key for c in (A, DEEPER, Candidate(depth=2, seq_len=128, micro_batch=8))
    )  # fmt: skip


def test_a_smaller_capacity_makes_the_largest_run_out(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    assert (
        tune("--sampler", "grid", "--capacity", "600MiB", "--ceiling", "90%", "--out", "mine")[0]
        == ExitCode.FOUND
    )
    trials = pd.read_csv("mine/trials.csv")
    ran_out = trials[trials.verdict == "oom"]
    assert len(ran_out) > 0
    assert (ran_out.seq_len * ran_out.micro_batch > 600).all()
    assert best("mine")["limits"]["capacity_bytes"] == 600 * MIB
    assert best("mine")["measured"]["peak_bytes"]["device"] == 512 * MIB


def test_where_nothing_fits_the_study_says_so(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv", [row(LONGER), row(Candidate(depth=2, seq_len=128, micro_batch=2))])
    code, _, err = tune("--capacity", "256MiB", "--ceiling", "20%", "--out", "mine")
    assert (code, err.count("\n")) == (ExitCode.NOTHING_FITS, 1)
    assert err.startswith("autotune: nothing fits under 51 MiB (20% of 256 MiB); the least peak")
    assert f"{LONGER.key} peaked at 128 MiB" in err


def test_a_dry_run_names_the_recording_and_writes_nothing(tune: Tune, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    before = set(tmp_path.iterdir())
    code, out, _ = tune("--dry-run")
    assert (code, set(tmp_path.iterdir())) == (ExitCode.FOUND, before)
    assert "32 of 32 candidates are valid, in 4 builds of model and engine" in out
    plan = " ".join(out.split())
    assert "micro_batch 1, 2, 4, 8 checkpointing none, full" in plan
    assert "replay of g.csv, recorded on a processor" in plan


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--depth", "3"], "--depth 3: not recorded in g.csv; use any of --depth 2,4"),
        (["--micro-batch", "1:9"], "--micro-batch 3: not recorded in g.csv; use any of"
         " --micro-batch 1,2,4,8"),
        (["--zero", "2"], "--zero 2: not recorded in g.csv; use any of --zero 0"),
        (["--offload", "none,all", "--zero", "0,3"], "--zero 3: not recorded in g.csv"),
        (["--gpt", "vocab_size=8"], "--gpt vocab_size=8: g.csv was recorded with 4096; use --gpt"
         " vocab_size=4096"),
        (["--gpt", "width=128"], "--gpt width=128: g.csv was recorded with 64 x depth; leave it"
         " out"),
        (["--dtype", "bf16"], "--dtype bf16: g.csv was recorded with fp32; use --dtype fp32"),
        (["--optimizer", "muon"], "--optimizer muon: not recorded in g.csv; use any of --optimizer"
         " adamw"),
        (["--engine", "fsdp"], "--engine fsdp: g.csv was recorded with ddp;"),
        (["--world-size", "2"], "--world-size 2: g.csv was recorded with 1;"),
        (["--global-batch", "64"], "--global-batch 64: g.csv was recorded with no global batch;"),
        (["--tokens-per-batch", "8"], "--tokens-per-batch 8: holds no sample of"),
        (["--capacity", "5GiB"], "--capacity 5.00 GiB: g.csv was recorded with 4.00 GiB a rank;"
         " use --capacity 4096MiB or less"),
    ],
)  # fmt: skip
def test_what_was_not_recorded_is_refused(
    refused: Refused, tmp_path: Path, argv: list[str], message: str
) -> None:
    write(tmp_path / "g.csv")
    assert refused(*argv).startswith(message)


def test_a_recording_of_one_length_is_no_mix(refused: Refused, tmp_path: Path) -> None:
    write(tmp_path / "g.csv")
    (tmp_path / "mix.csv").write_text("64,1\n128,1\n")
    said = refused("--length-mix", str(tmp_path / "mix.csv"))
    assert said.endswith("g.csv was recorded with samples of one length; leave it out")


def test_axes_that_were_not_recorded_together(refused: Refused, tmp_path: Path) -> None:
    write(tmp_path / "g.csv", [row(LONGER), row(DEEPER)])
    assert refused("--depth", "4", "--seq-len", "128").startswith(
        "g.csv: has no candidate with all these values"
    )


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("none.csv", None, "none.csv: No such file or directory; name a recorded grid"),
        ("", None, ".: Is a directory; name a recorded grid"),
        (".", None, ".: Is a directory; name a recorded grid"),
        ("g.csv", b"", "g.csv: not a recorded grid"),
        ("g.csv", bytes(range(256)), "g.csv: not a recorded grid"),
        ("g.csv", b"depth,seq_len\n1,2\n", "g.csv: not a recorded grid"),
        ("g.csv", b'# {"schema_version":2}\n', "g.csv: not a recorded grid of version 1"),
    ],
    ids=["missing", "no name", "folder", "empty", "binary", "another csv", "another version"],
)  # fmt: skip
def test_what_is_no_recording_is_refused(
    refused: Refused, tmp_path: Path, file: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / file).write_bytes(content)
    assert refused(file=file).startswith(says)


def test_a_recording_without_a_measurement_is_refused(refused: Refused, tmp_path: Path) -> None:
    write(tmp_path / "g.csv", [])
    assert refused().startswith("g.csv: it has no recordings yet")
