"""What a longer run says of a result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from msgspec import structs

from autotune.commands import verify as command
from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.device import cuda, open_device
from autotune.errors import UsageError
from autotune.measure.runner import Job, Result
from autotune.result.best import Best
from autotune.result.choice import Repeats
from autotune.result.hardware import other_hardware
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.study import verify
from autotune.wire.reports import Peaks
from tests.support.defaults import RULE
from tests.support.exported import result
from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.support.scripted import ScriptedRunner, report

MIB = 2**20
TINY = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "2", "--gpt",
        "vocab_size=256", "--checkpointing", "none", "--trials", "1", "--finals", "1"]  # fmt: skip
BEST = result("ddp", 0)
STEP_S = BEST.measured.step_s.median


def run_of(step_s: list[float], peak_mib: int = 100, held_mib: int = 50) -> Any:
    made = report(1.0, peak_mib * MIB)
    return replace(
        made, step_s=step_s, warmup_step_s=[STEP_S] * 3, peaks=Peaks.same(peak_mib * MIB),
        state_bytes=held_mib * MIB,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("factor", "peak_mib", "passed"),
    [(1.0, 100, True), (1.04, 100, True), (1.06, 100, False), (0.5, 100, True),
     (1.0, BEST.limits.limit_bytes // MIB + 1, False)],
)  # fmt: skip
def test_a_result_holds_if_fast_and_in_memory(factor: float, peak_mib: int, passed: bool) -> None:
    long = run_of([factor * STEP_S] * 200, peak_mib)
    found = verify._verified(BEST, run_of([STEP_S] * 20), long)
    assert found.passed is passed
    assert found.share_of_measured == pytest.approx(1 / factor)
    assert found.peak_bytes == peak_mib * MIB


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([20, 200], "DOES NOT HOLD: after 200 steps no memory; see group001-rank0.log"),
        ([20], "DOES NOT HOLD: after 20 steps no memory; see group001-rank0.log"),
        ([], "DOES NOT HOLD: after 0 steps no memory; see group001-rank0.log"),
    ],
)
def test_a_winner_that_runs_out_of_memory_does_not_hold_and_its_logs_stay(
    made: list[int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In the short run, in the long one after it, or in the launch for phases."""
    left = list(made)

    def answer(job: Job) -> Result:
        if left:
            return Result(verdict=Verdict.OK, report=run_of([STEP_S] * left.pop(0)))
        return Result(verdict=Verdict.OOM, reason="no memory; see group001-rank0.log")

    @contextmanager
    def training(best: Best, *, logs: Path, **how: object) -> Iterator[verify.Training]:
        (logs / "group001-rank0.log").write_text("a traceback")
        yield verify.Training(
            ScriptedRunner(answer), best, best.config.candidate, open_device("cpu")
        )

    monkeypatch.setattr(verify, "training", training)
    monkeypatch.setattr(verify, "probing", lambda best: RULE)
    monkeypatch.setattr(Best, "phase_args", True)
    BEST.write(tmp_path / "best.json")
    assert main(["verify", str(tmp_path)]) == ExitCode.NOT_VERIFIED
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == said
    folder = Path(last.removeprefix("Logs: "))
    assert folder.parent == tmp_path
    assert (folder / "group001-rank0.log").read_text() == "a traceback"
    found = Best.read(tmp_path / "best.json").verified
    assert found is not None
    assert (found.passed, found.tokens_per_s, found.peak_bytes) == (False, None, None)
    assert found.ran_out == "no memory; see group001-rank0.log"


@pytest.mark.parametrize("known", ["phase_args", "may_have_phases"])
@pytest.mark.parametrize(
    ("peak_mib", "launches"), [(1, 1), (BEST.limits.limit_bytes // MIB + 1, 0)]
)
def test_no_phase_is_waited_for_where_training_does_not_hold(
    peak_mib: int, launches: int, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the user said how to reach it, or a script may come to it by itself."""
    monkeypatch.setattr(Best, known, True)
    long = run_of([STEP_S] * 200, peak_mib)
    runner = ScriptedRunner(lambda job: Result(verdict=Verdict.OK, report=long))

    @contextmanager
    def training(best: Best, **_: object) -> Iterator[verify.Training]:
        yield verify.Training(runner, best, best.config.candidate, open_device("cpu"))

    monkeypatch.setattr(verify, "training", training)
    monkeypatch.setattr(verify, "probing", lambda best: RULE)
    verify.verify(BEST, steps=40, limit_s=1000.0, logs=tmp_path, note=lambda said: None)
    assert sum(job.phases for job in runner.jobs) == launches


@pytest.mark.parametrize(
    ("cycle", "steps", "said"),
    [
        (1, 40, "training 40 steps, about"),
        (1, 10**9, f"training 980 of {10**9} steps, about"),
        (16, 40, "training 64 steps, about 64 s; fewer do not have every length of the mix"),
    ],
)
def test_the_steps_are_told_as_they_are_made(
    cycle: int, steps: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = replace(BEST.measured, step_s=structs.replace(BEST.measured.step_s, median=1.0))
    mixed = replace(BEST, measured=second)
    monkeypatch.setattr(Best, "cycle_steps", cycle)

    @contextmanager
    def training(best: Best, **_: object) -> Iterator[verify.Training]:
        ran = ScriptedRunner(lambda job: Result(verdict=Verdict.OOM, reason="no memory"))
        yield verify.Training(ran, best, best.config.candidate, open_device("cpu"))

    monkeypatch.setattr(verify, "training", training)
    notes: list[str] = []
    verify.verify(mixed, steps=steps, limit_s=1000.0, logs=tmp_path, note=notes.append)
    assert notes[0].startswith(said)


def test_a_gpu_is_held_to_three_percent() -> None:
    on_gpu = result("ddp", 0, kind="cuda")
    long = run_of([1.04 * on_gpu.measured.step_s.median] * 200)
    assert not verify._verified(on_gpu, run_of([STEP_S] * 20), long).passed


def busy(made: Any, others: float) -> Any:
    """On two cores, of whose time others took that share."""
    wall_s = sum(made.step_s)
    seen = replace(
        made.conditions, interval_cpu_s=2 * wall_s, busy_cpu_s=2 * wall_s, steal_cpu_s=0.0,
        own_cpu_s=2 * wall_s * (1 - others),
    )  # fmt: skip
    return replace(made, timed_s=wall_s, conditions=seen)


FAST, SLOW = [STEP_S] * 50, [2 * STEP_S] * 50
WIDE = replace(BEST, measured=replace(
    BEST.measured, step_s=structs.replace(BEST.measured.step_s, high=2 * STEP_S)))  # fmt: skip


@pytest.mark.parametrize(
    ("best", "steps", "others", "peak_mib", "ends"),
    [
        (BEST, SLOW * 4, 0.33, 100, (ExitCode.NO_MEASUREMENT, "took 33% of the processor")),
        (BEST, SLOW * 4, 0.10, 100, (ExitCode.NOT_VERIFIED, "DOES NOT HOLD")),
        (BEST, [3 * STEP_S] * 200, 0.33, 100, (ExitCode.NOT_VERIFIED, "DOES NOT HOLD")),
        (BEST, SLOW * 4, 0.0, 100, (ExitCode.NOT_VERIFIED, "DOES NOT HOLD")),
        (BEST, SLOW * 3 + FAST, 0.0, 100, (ExitCode.NO_MEASUREMENT, "a later quarter")),
        (BEST, FAST + SLOW * 3, 0.0, 100, (ExitCode.NOT_VERIFIED, "DOES NOT HOLD")),
        (WIDE, SLOW * 4, 0.0, 100, (ExitCode.NO_MEASUREMENT, "the study's own steps")),
        (BEST, SLOW * 4, 0.33, 2**20, (ExitCode.NOT_VERIFIED, "DOES NOT HOLD")),
        (BEST, FAST * 4, 0.33, 100, (ExitCode.FOUND, "Holds")),
    ],
)  # fmt: skip
def test_what_the_machine_alone_may_have_made_slow_is_no_answer(
    best: Best, steps: list[float], others: float, peak_mib: int, ends: tuple[ExitCode, str]
) -> None:
    found = verify._verified(best, run_of(FAST), busy(run_of(steps, peak_mib), others))
    code, said = ends
    assert command.exit_of(found) == code
    assert said in " ".join(command.lines(found))


def among_noise(low: float = 1.0, differ: float | None = None) -> Best:
    """On the hardware that is here; `low` is of the shortest step, as a share of the median."""
    step = structs.replace(BEST.measured.step_s, low=low * STEP_S)
    repeats = None if differ is None else Repeats(differ=differ, pairs=3)
    here = {"kind": "cpu", "devices": open_device("cpu").fingerprint()}
    return replace(
        BEST, measured=replace(BEST.measured, step_s=step), repeats=repeats, fingerprint=here
    )


@pytest.mark.parametrize(
    ("best", "quarters", "faster"),
    [
        (among_noise(), [0.75] * 4, True),
        (among_noise(), [0.96] * 4, False),  # as a longer run may be
        (among_noise(low=0.7), [0.75] * 4, False),  # the study's steps
        (among_noise(differ=0.3), [0.75] * 4, False),  # the study's finals
        (among_noise(differ=0.1), [0.75] * 4, True),
        (among_noise(), [0.75, 0.75, 0.75, 0.97], False),  # not all of the run
    ],
)
def test_a_run_that_is_faster_than_the_noise_explains_says_by_how_much_and_what_that_means(
    best: Best, quarters: list[float], faster: bool
) -> None:
    steps = [quarter * STEP_S for quarter in quarters for _ in range(50)]
    found = verify._verified(best, run_of(FAST), run_of(steps))
    said = " ".join(command.lines(found))
    assert found.faster is faster
    assert ("Faster by 33%, beyond the study's noise" in said) is faster
    assert command.exit_of(found) == ExitCode.FOUND


def test_a_run_on_other_hardware_that_is_faster_says_only_that_it_is_other_hardware() -> None:
    found = verify._verified(BEST, run_of(FAST), run_of([0.5 * STEP_S] * 200))
    said = " ".join(command.lines(found))
    assert "Not the same hardware" in said
    assert "Faster" not in said


def test_drift_and_growth_are_told() -> None:
    steps = [STEP_S] * 50 + [1.1 * STEP_S] * 50 + [1.2 * STEP_S] * 50 + [2 * STEP_S] * 50
    before, after = run_of([STEP_S] * 20), run_of(steps, held_mib=50 + 203)
    found = verify._verified(BEST, before, after)
    rate = BEST.config.global_batch_tokens / STEP_S
    assert found.quarters == pytest.approx([rate, rate / 1.1, rate / 1.2, rate / 2])
    assert found.growth_bytes_per_100_steps == pytest.approx(100 * MIB)
    said = " ".join(command.lines(found))
    assert "the last is 50.0% of the first" in said
    assert "grew by 100.0 MiB in 100 steps" in said
    assert "Not the same hardware: it was measured on a processor" in said


def test_what_a_script_holds_nobody_looked_at_and_no_growth_is_told() -> None:
    script = replace(BEST, command=["python", "train.py"])
    found = verify._verified(script, run_of([STEP_S] * 20), run_of([STEP_S] * 200))
    assert found.growth_bytes_per_100_steps is None
    assert "grew" not in " ".join(command.lines(found))


def test_the_study_s_options_are_narrowed_to_its_winner() -> None:
    asked = Options.of(depth=(2, 4), seq_len=(64, 128), model="gpt", device="cpu", budget_s=90.0)
    best = replace(BEST, provenance={"options": asked.to_json()})
    options = verify._options(best)
    assert (
        options.space.axes.get("depth"),
        options.space.axes.get("seq_len"),
        options.space.axes.get("zero_stage"),
    ) == ((2,), (64,), (0,))
    assert (options.devices.world_size, str(options.space.global_batch)) == (2, "16")


def test_a_script_is_looked_for_where_its_study_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.sh").touch(mode=0o755)
    with chdir(tmp_path):
        asked = Options.of(script="./train.sh {micro_batch}", micro_batch=(1,), seq_len=(64,))
    best = replace(BEST, provenance={"options": asked.to_json(), "started_in": str(tmp_path)})
    monkeypatch.setattr(os, "chdir", lambda folder: pytest.fail("it is the process's own"))
    assert verify._options(best) == asked
    gone = replace(best, provenance=best.provenance | {"started_in": str(tmp_path / "gone")})
    with pytest.raises(UsageError, match="gone: no such folder"):
        verify._options(gone)


@pytest.mark.parametrize(
    ("options", "what"),
    [(None, "has no options of its study"),
     (Options.of(device="replay:x.csv").to_json(), "comes from a recording")],
)  # fmt: skip
def test_what_cannot_be_trained_here_is_refused(options: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        verify._options(replace(BEST, provenance={"options": options}))


# What was measured on several nodes.


def over_two_nodes(kind: str = "cuda", **options: Any) -> Best:
    found = result("ddp", 0, kind=kind, world_size=2, nodes=2)
    return replace(found, provenance={"options": Options.of(**options).to_json()})


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any Slurm job."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("kind", "launch", "more"),
    [("cpu", "slurm", "--launch slurm: not in a Slurm allocation"),
     ("cuda", None, "verify it in a Slurm job of 2 nodes")],
)  # fmt: skip
@pytest.mark.usefixtures("outside")
def test_a_result_of_two_nodes_is_not_verified_on_one(
    tmp_path: Path, kind: str, launch: str | None, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    over_two_nodes(kind, launch=launch).write(tmp_path / "best.json")
    assert main(["verify", str(tmp_path)]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "was measured on 2 nodes, and cannot be verified on one: " + more in line


@pytest.mark.usefixtures("outside")
def test_a_machine_of_as_many_devices_is_other_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeNvml(FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2"))
    monkeypatch.setattr(cuda, "nvml", gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    best = over_two_nodes(launch="slurm", device="cuda:0", nodes=2)
    options = verify._here(best, verify._options(best))
    assert (options.cluster.launch, options.cluster.nodes, options.devices.device) == (
        None,
        None,
        "cuda",
    )
    long = run_of([best.measured.step_s.median] * 200)
    found = verify._verified(best, run_of([STEP_S] * 20), long, open_device("cuda"))
    assert found.other_hardware == "it was measured on 2 nodes, and here is 1"


@pytest.mark.usefixtures("outside")
def test_a_study_s_launcher_that_is_there_verifies_its_result() -> None:
    best = over_two_nodes(launch="wait", nodes=2)
    assert verify._here(best, verify._options(best)).cluster.launch == "wait"


def test_a_result_of_gpus_that_is_verified_on_a_cpu_says_so() -> None:
    differs = other_hardware(result("ddp", 0, kind="cuda"), open_device("cpu"))
    assert differs == "it was measured on cuda, and here is cpu"


@pytest.mark.usefixtures("outside")
def test_a_result_of_one_node_needs_no_launcher() -> None:
    best = replace(BEST, provenance={"options": Options.of(launch="slurm").to_json()})
    assert verify._here(best, verify._options(best)).cluster.launch is None


def test_a_script_on_one_node_is_on_the_same_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    best = result("ddp", 0, kind="cuda", world_size=4, nodes=2)  # of 2 devices of 80 GiB each
    one, two = (FakeGpu(uuid=each, name="a GPU", total=80 * 2**30) for each in ("A", "B"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cuda, "nvml", FakeNvml(one, two))
    assert other_hardware(best) == ""
    monkeypatch.setattr(cuda, "nvml", FakeNvml(one))
    differs = "it was measured on 2 x a GPU a node, and here is 1 x a GPU"
    assert other_hardware(best) == differs


@pytest.mark.parametrize(
    "flags", [["--steps", "3"], ["--minutes", "0"], ["--minutes", "nan"]], ids=str
)
def test_wrong_input(tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    BEST.write(tmp_path / "best.json")
    assert main(["verify", str(tmp_path), *flags]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert flags[0] in line


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "code"), [(50.0, ExitCode.FOUND), (0.02, 6)])
def test_a_winner_is_trained_for_real(
    tmp_path: Path, factor: float, code: int, capsys: pytest.CaptureFixture[str],
    studied: Path,
) -> None:  # fmt: skip
    """A study that says its steps were 50 times as fast as they are does not hold. That much no
    noise does."""
    path = copytree(studied.parent, tmp_path / "study") / studied.name
    document = json.loads(path.read_text())
    step = document["measured"]["step_s"]
    for name in ("median", "low", "high"):
        step[name] *= factor
    path.write_text(json.dumps(document))
    assert main(["verify", str(path), "--steps", "40", "--minutes", "10"]) == code
    assert ("Holds: " if code == 0 else "DOES NOT HOLD: ") in capsys.readouterr().out
    found = Best.read(path).verified
    assert found is not None
    assert (found.passed, found.steps >= 40) == (code == 0, True)
    assert not list(path.parent.glob("verify-*"))


@pytest.mark.slow
def test_verifying_is_in_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--budget", "90s", "--learn-from", "none", "--out", str(tmp_path / "study")]
    began = time.monotonic()
    code = main([*TINY, *out, "--verify"])
    assert time.monotonic() - began < 95
    found = Best.read(tmp_path / "study" / "best.json").verified
    assert found is not None
    assert code == command.exit_of(found)  # noise may well be 5 %
    assert command.lines(found)[0] in capsys.readouterr().out


def test_a_recording_is_not_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verify", "--device", "replay:x.csv"]) == ExitCode.USAGE
    assert "--verify: replay:x.csv has no device to train on" in capsys.readouterr().err


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best.json of one study: for copies."""
    folder = tmp_path_factory.mktemp("studied") / "study"
    out = ["--budget", "60s", "--learn-from", "none", "--out", str(folder)]
    assert main([*TINY, *out]) == ExitCode.FOUND
    return folder / "best.json"
