"""A script of the user's own, launched as it is: what is measured, and what is refused."""

from __future__ import annotations

import itertools
import re
import statistics
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pynvml
import pytest

from autotune.device import cuda, open_device
from autotune.device.cpu import CpuDevice
from autotune.errors import ModelError
from autotune.measure.runner import Result
from autotune.measure.runner.extensions import CACHES, COMPILED
from autotune.measure.script import launch, launches
from autotune.measure.script.launches import _memory, _saw
from autotune.space.outcome import Verdict
from autotune.wire.emulated import emulating
from autotune.wire.hook import Left
from autotune.wire.stopping import Phase
from tests.support import rapl
from tests.support.choice import campaign
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml
from tests.support.launches import BIN, OWN, PLAIN, PYTHON, Lab, seen
from tests.support.pools import RULE

pytestmark = pytest.mark.slow

Labs = Callable[..., Lab]


@pytest.fixture
def lab(tmp_path: Path) -> Labs:
    def make(script: str, **more: str) -> Lab:
        return Lab(tmp_path, script, None, **more)

    return make


def own(how: str, *words: str) -> str:
    return " ".join([f"{PYTHON} {OWN} {how} --batch {{micro_batch}} --len {{seq_len}}", *words])


def ran(result: Result) -> tuple[float, float, int, bool]:
    found = seen(result)
    return found.samples, found.tokens, found.micro_steps, found.seen


def own_figures(logs: Path) -> list[float]:
    (log,) = logs.glob("launch*.log")
    return [float(each) for each in re.findall(r"tokens/s ([\d.]+)", log.read_text())]


def nothing_is_left(of: Path) -> bool:
    """Whether no process has a file of that folder in its environment or words."""
    here = str(of).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if here in (folder / "environ").read_bytes():
                return False
        except OSError:
            continue
    return {path.name for path in of.glob("*.tmp")} <= {COMPILED}  # which the next launches need


def test_a_plain_loop_with_two_optimizers_is_seen_as_it_is(lab: Labs, tmp_path: Path) -> None:
    before = OWN.read_bytes()
    result = lab(own("plain", "--accum {grad_accum}"), global_batch="8", micro_batch="2").probe()
    assert result.verdict == Verdict.OK
    assert ran(result) == (8.0, 256.0, 4, True)
    assert seen(result).optimizer == "adamw+sgd"
    assert result.parameters == 256 * 64 + (64 * 256 + 256) + (256 * 256 + 256)
    assert OWN.read_bytes() == before
    assert nothing_is_left(tmp_path)


def written(folder: Path, program: str) -> str:
    """Words that start a script of that text, and of `own_script.plain` after it."""
    file = folder / "script.py"
    here = f"import sys; sys.path.insert(0, {str(OWN.parent)!r})\n"
    file.write_text(f"{here}{textwrap.dedent(program)}\nimport own_script\nown_script.main()\n")
    return f"{PYTHON} {file} plain --batch {{micro_batch}} --len {{seq_len}}"


def test_a_path_in_front_of_the_command_is_kept(lab: Labs, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "of_their_own.py").touch()
    script = written(tmp_path, "import of_their_own")
    result = lab(f"PYTHONPATH={tmp_path / 'modules'} {script}").probe()
    assert result.verdict == Verdict.OK, result.reason


def test_what_a_launch_compiled_is_there_for_the_next_one_until_the_end(
    lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CACHES:  # torch sets one of them where something was compiled before
        monkeypatch.delenv(name, raising=False)
    one = lab(written(tmp_path, """
        import os, pathlib
        folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        print("had", sorted(each.name for each in folder.glob("*")))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel").touch()
    """))  # fmt: skip
    for place in (0, 1):
        assert one.probe(place).verdict == Verdict.OK
    said = [(tmp_path / f"launch00{n}.log").read_text().splitlines()[0] for n in (1, 2)]
    assert said == ["had []", "had ['kernel']"]
    assert (tmp_path / COMPILED).is_dir()
    one.runner.close()
    assert not (tmp_path / COMPILED).exists()


@pytest.mark.parametrize(
    "more", ["ended.check_returncode()", "raise RuntimeError('Connection closed by peer [::1]')"]
)
def test_the_error_of_a_process_is_told_not_its_launchers_or_peers(
    more: str, lab: Labs, tmp_path: Path
) -> None:
    one = lab(written(tmp_path, f"""
        import subprocess, sys, torch
        if "child" in sys.argv:
            raise ValueError("of the child")
        ended = subprocess.run([sys.executable, __file__, "child"])
        {more}
    """))  # fmt: skip
    with pytest.raises(ModelError, match="ValueError: of the child"):
        one.probe()


def test_what_trained_before_and_ended_is_no_rank(lab: Labs, tmp_path: Path) -> None:
    one = lab(written(tmp_path, """
        import subprocess, sys
        if "--steps" not in sys.argv:
            words = [sys.executable, __file__, "plain", "--len", "32", "--steps", "5"]
            subprocess.check_call(words)
    """))  # fmt: skip
    assert ran(one.probe()) == (2.0, 64.0, 1, True)


Ends = Callable[[Lab, Callable[[Phase, int], bool]], None]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Has the budget end once a launch has come to a phase, and made so many steps."""

    def set_up(one: Lab, there: Callable[[Phase, int], bool]) -> None:
        reached = Event()

        def on_phase(phase: Phase, made: int) -> None:
            if there(phase, made):
                reached.set()

        one.on_phase = on_phase
        now = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6 * reached.is_set())
        monkeypatch.setattr(launches, "time", now)

    return set_up


def test_where_the_budget_ends_before_a_step_it_is_said_what_was_seen(
    lab: Labs, ends: Ends
) -> None:
    one = lab(own("sleeps"))
    ends(one, lambda phase, made: phase is Phase.BUILD)
    result = one.probe()
    assert result.verdict == Verdict.SKIPPED
    assert "; it imported torch, and made no backward pass" in result.reason


def test_where_the_budget_ends_after_few_steps_these_are_its_measurement(
    lab: Labs, ends: Ends
) -> None:
    rule = replace(RULE, warmup_steps=3, timed_steps=1000)
    one = lab(own("plain", "--sample-s 0.1"))
    ends(one, lambda phase, made: made >= 8)
    result = one.probe(rule=rule)
    assert result.verdict == Verdict.OK, result.reason
    assert "the budget ended during this probe; it made " in result.reason
    assert 2 <= len(result.reported.step_s) < 1000


def test_where_the_budget_ends_after_one_step_it_is_said_what_took_the_time(
    lab: Labs, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (9e9, 0.0, 0.0))
    monkeypatch.setattr("autotune.measure.script.timing.ROUGH_STEPS", 1000)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rule = replace(RULE, timed_steps=2000)
    one = lab(own("plain", "--sample-s 0.1"))
    ends(one, lambda phase, made: made >= 4)
    result = one.probe(rule=rule)
    assert result.verdict == Verdict.SKIPPED
    assert re.search(
        r"; its first step began after \d+ s, a step took .* s, and a p", result.reason
    )
    assert "; the machine is busy: load 9000000000 on " in result.reason
    assert result.reason.endswith("; try OMP_NUM_THREADS=1 before the script's command")


def test_rows_a_sample_are_told_from_heedlessness(lab: Labs, tmp_path: Path) -> None:
    one = lab(own("plain", "--rows 2"), micro_batch="2,4,8")
    assert ran(one.probe(1)) == (4.0, 256.0, 1, True)  # the second of three launches
    assert ran(one.probe(0)) == (2.0, 128.0, 1, True)
    assert ran(one.probe(2)) == (8.0, 512.0, 1, True)
    assert len(list(tmp_path.glob("launch*.log"))) == 5
    assert one.notes == ["the model gets 2 rows a sample"]


def test_another_launch_that_fails_ends_no_study(lab: Labs, tmp_path: Path) -> None:
    command = written(tmp_path, """
        import sys
        if sys.argv[sys.argv.index("--batch") + 1] == "4":
            raise ValueError("not with four")
    """)  # fmt: skip
    one = lab(f"{command} --rows 2", micro_batch="2,4,8")
    first = one.probe(0)
    assert first.verdict == Verdict.UNSUPPORTED
    assert "asked for micro_batch 2, the model got 4 x 32" in first.reason
    assert ran(one.probe(2)) == (8.0, 512.0, 1, True)


@pytest.mark.parametrize(
    ("parses", "hint"),
    [("choices=['True', 'False']", True), ("type=int", True), ("default=''", False)],
)
def test_a_script_that_takes_true_and_false_is_told_how_it_gets_them(
    lab: Labs, tmp_path: Path, parses: str, hint: bool
) -> None:
    command = written(tmp_path, f"""
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--gc", {parses})
        parser.parse_known_args()
        raise ValueError("none of it works")
    """)  # fmt: skip
    with pytest.raises(ModelError) as failed:
        lab(f"{command} --gc {{checkpointing}}", checkpointing="none,full").probe()
    said = '; for True and False write --axis "ch=True,False", and {ch} for {checkpointing}; see'
    assert (said in str(failed.value)) == hint


@pytest.mark.parametrize("sizes", ["4,5,8", "2,3,8"], ids=["in none", "in one"])
def test_heed_that_is_paid_to_no_value_of_the_space_ends_the_study(lab: Labs, sizes: str) -> None:
    one = lab(own("odd", "--odd heedless"), micro_batch=sizes)  # it always takes 3
    assert one.probe(0).verdict == Verdict.UNSUPPORTED
    with pytest.raises(ModelError, match=r"it ignores \{micro_batch\}; leave that out"):
        one.probe(2)


def test_a_script_that_heeds_some_values_is_not_heedless(lab: Labs) -> None:
    one = lab(own("capped"), micro_batch="2,4,8")
    assert one.probe(0).verdict == Verdict.OK
    for place in (1, 2):
        result = one.probe(place)
        assert result.verdict == Verdict.UNSUPPORTED
        assert (result.unsupported, result.only) == (("micro_batch",), {})


def test_a_script_with_an_upper_limit_does_not_end_the_study(lab: Labs) -> None:
    one = lab(own("capped"), micro_batch="3,4,8")
    assert [one.probe(place).verdict for place in (1, 2)] == 2 * [Verdict.UNSUPPORTED]
    assert one.probe(0).verdict == Verdict.OK


def test_another_dtype_than_was_asked_for_is_said_and_is_what_ran(lab: Labs) -> None:
    one = lab(own("plain", "--note {dtype}"), dtype="bf16")
    result = one.probe()
    assert seen(result).dtype == "fp32"
    one.probe()
    assert one.notes == ["--dtype bf16 was requested, but the model computes in fp32"]


def test_steps_that_a_loss_s_scale_leaves_out_are_none(lab: Labs) -> None:
    one = lab(own("scaled", "--accum {grad_accum}"), global_batch="4", micro_batch="2")
    result = one.probe(rule=replace(RULE, timed_steps=20))
    assert ran(result) == (4.0, 128.0, 2, True)


def test_the_rate_is_the_script_s_own(lab: Labs, tmp_path: Path) -> None:
    one = lab(own("plain", "--sample-s 0.005"), micro_batch="2")
    result = one.probe(rule=replace(RULE, timed_steps=60))
    step_s = [*result.reported.warmup_step_s, *result.reported.step_s]  # from the second step on
    figure = own_figures(tmp_path)[1]
    assert 20 * 64 / sum(step_s[19:39]) == pytest.approx(figure, rel=0.03)


def test_what_a_loader_takes_is_waited_for(lab: Labs) -> None:
    result = lab(own("plain", "--sample-s 0.05"), micro_batch="2").probe()
    step_s = statistics.fmean(result.reported.step_s)
    assert 0.099 / step_s < seen(result).waiting_share < 1


def test_a_loader_that_costs_nothing_is_not_waited_for(lab: Labs) -> None:
    result = lab(own("plain"), micro_batch="64", seq_len="256").probe()
    assert seen(result).waiting_share < 0.3


TORCHRUN = f"{BIN}/torchrun --nproc-per-node=2 {OWN}"
SIZES = "--device-batch-size={micro_batch} --len {seq_len} --out {out}"
HOW = {
    "t5": (own("t5", "--out {out}"), 1),
    "accelerate": (
        f"{BIN}/accelerate launch --config_file {{accelerate_config}} {OWN} accelerate {SIZES}",
        1,
    ),
    "torchrun": (f"{BIN}/torchrun --nproc-per-node 2 {PLAIN.partition(' ')[2]}", 2),
    "hf on 2": (f"{TORCHRUN} hf {SIZES}", 2),
    "accelerate on 2": (f"{TORCHRUN} accelerate {SIZES}", 2),
    "lightning on 2": (own("lightning", "--devices 2 --out {out}"), 2),
}


@pytest.mark.parametrize("how", HOW)
def test_frameworks_are_seen_as_they_are(lab: Labs, how: str) -> None:
    script, ranks = HOW[how]
    more = {"world_size": "2"} if how == "lightning on 2" else {}
    result = lab(script, micro_batch="4", **more).probe()
    assert result.verdict == Verdict.OK, result.reason
    assert ran(result) == (4.0 * ranks, 4.0 * 32 * ranks, 1, True)


def test_preferences_have_two_rows_a_sample(lab: Labs) -> None:
    one = lab(f"{PYTHON} {OWN} dpo --batch {{micro_batch}} --out {{out}}", micro_batch="2,4",
              seq_len="")  # fmt: skip
    result = one.probe(limit_s=600.0)
    assert result.verdict == Verdict.OK, result.reason
    assert seen(result).samples == 2.0
    assert one.notes == ["the model gets 2 rows a sample"]


def test_samples_with_images_are_counted_with_all_their_tokens(lab: Labs) -> None:
    """Of 4 tokens of an image with its marks, 5 and 7 words."""
    one = lab(f"{PYTHON} {OWN} vlm --batch {{micro_batch}} --out {{out}}", micro_batch="2",
              seq_len="")  # fmt: skip
    result = one.probe(limit_s=600.0)
    assert result.verdict == Verdict.OK, result.reason
    assert (seen(result).samples, seen(result).seq_len) == (2.0, 18)


def test_a_step_has_its_part_of_the_rollout_that_it_learns_from(lab: Labs, tmp_path: Path) -> None:
    one = lab(f"{PYTHON} {OWN} grpo --batch {{micro_batch}} --out {{out}}", micro_batch="8",
              seq_len="")  # fmt: skip
    result = one.probe(rule=replace(RULE, timed_steps=9), limit_s=600.0)
    assert (seen(result).samples, one.notes) == (
        8.0, ["a rollout every 4 steps: a step's time has its part of it"]
    )  # fmt: skip
    cycle_s = [*result.reported.warmup_step_s, *result.reported.step_s]  # from the fifth step on
    assert 8 / statistics.fmean(cycle_s[4:9]) == pytest.approx(own_figures(tmp_path)[1], rel=0.03)


@pytest.mark.parametrize(
    ("stage", "ranks"),
    [
        *campaign(("0", 2), ("0", 1), ("3", 2)),
        ("2", 2),
        ("3", 1),
    ],
)
def test_deepspeed_reads_its_configuration(lab: Labs, stage: str, ranks: int) -> None:
    script = f"{BIN}/torchrun --nproc-per-node {ranks} {OWN} deepspeed --ds {{deepspeed_config}}"
    one = lab(script, micro_batch="2", zero=stage, given="lr=1e-4", global_batch="8", seq_len="")
    result = one.probe()
    assert result.verdict == Verdict.OK, result.reason
    assert ran(result) == (8.0, 256.0, 4 // ranks, True)


@pytest.mark.parametrize(
    ("size", "verdict", "after"),
    [
        ("2", Verdict.OK, 5),
        ("2", Verdict.OK, 1),  # the peak lacks what they gave back
        ("16384", Verdict.OOM, 5),
        ("16384", Verdict.OOM, 1),  # nobody took what it had no room in
    ],
)
def test_what_others_took_of_its_device_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, verdict: Verdict, after: int
) -> None:
    asked = {"micro_batch": size, "seq_len": "512", "capacity_bytes": "1GiB"}
    one = Lab(tmp_path, own("plain"), None, **asked)
    # What the script held comes back a moment after its end.
    in_use = itertools.chain([3 * GIB, 9 * GIB, 7 * GIB], itertools.repeat(after * GIB))
    monkeypatch.setattr(CpuDevice, "in_use_bytes", lambda device: (next(in_use),))
    result = one.probe()
    assert (result.verdict, result.of_host) == (verdict, False), result.reason
    taken = 2 * GIB if verdict == Verdict.OOM and after == 5 else 0
    assert result.foreign_bytes == taken
    if result.report is not None:
        assert result.report.conditions.foreign_bytes == 2 * GIB


def test_a_spawned_rank_s_memory_is_memory(lab: Labs) -> None:
    result = lab(own("odd", "--odd spawned")).probe()
    assert result.verdict == Verdict.OOM


def test_a_script_that_pays_no_heed_is_never_ok(lab: Labs) -> None:
    one = lab(own("odd", "--odd heedless"), micro_batch="2,3,8", seq_len="32,64")
    first, second = one.probe(0), one.probe(2)
    assert first.verdict == second.verdict == Verdict.UNSUPPORTED
    assert first.reason == f"asked for micro_batch 2, the model got 3 x 32{launches.COUNTS}"
    assert first.unsupported == ("micro_batch",)
    assert second.only == {"micro_batch": 3}
    assert "ignores {micro_batch}" in second.reason


def test_positions_are_no_tokens_of_a_small_vocabulary(lab: Labs) -> None:
    result = lab(own("positions"), micro_batch="4").probe()
    assert result.verdict == Verdict.OK, result.reason
    assert ran(result) == (4.0, 128.0, 1, True)


def test_parameters_behind_a_checkpoint_are_counted(lab: Labs) -> None:
    result = lab(own("checkpointed")).probe()
    assert ran(result) == (2.0, 64.0, 1, True)
    assert result.parameters == 256 * 8 + 8 * 8 + 8 * 256


def test_too_few_ranks_end_the_study(lab: Labs) -> None:
    with pytest.raises(
        ModelError, match="but one process trains; write torchrun --nproc-per-node 2"
    ):
        lab(own("plain"), world_size="2").probe()


def test_accumulation_that_is_not_as_asked_ends_the_study(lab: Labs) -> None:
    script = own("plain", "--out {grad_accum}")
    with pytest.raises(ModelError, match="asked for 2 micro-steps, a step has 1 backward"):
        lab(script, global_batch="4", micro_batch="2").probe()


def test_a_script_that_cuts_its_batches_is_told_how_they_are_searched(lab: Labs) -> None:
    script = f"{PYTHON} {OWN} plain --batch 1 --accum 2 --len {{seq_len}} --out {{micro_batch}}"
    says = "the model got 1 x 32 in each of 2 backward passes; if it cuts batches, use {bs}"
    with pytest.raises(ModelError, match=says):
        lab(script, micro_batch="2").probe()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--odd forward", "left with exit code 0; it imported torch, and made no backward pass"),
        ("--odd raises", "ZeroDivisionError: of the script's own"),
        ("--odd terminal", "EOFError: EOF when reading a line"),
        ("--odd no-optimizer", "no step of a torch optimizer; .*autotune.step"),
        ("--no-such-flag", "left with exit code 2; .* unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_script_that_never_steps_fails(lab: Labs, tmp_path: Path, words: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as error:
        lab(own("odd", words)).probe()
    if "raises" in words:
        assert error.value.traceback.count("in odd\n") == 1
    if "such" in words:
        assert "unrecognized arguments: --no-such-flag" in error.value.traceback
    assert nothing_is_left(tmp_path)


def test_a_script_that_fails_may_not_with_a_smaller_micro_batch(lab: Labs) -> None:
    one = lab(own("odd", "--odd raises"))
    failed = one.probe(1)
    assert failed.verdict == Verdict.CRASHED
    assert "ZeroDivisionError" in failed.reason
    with pytest.raises(ModelError, match="ZeroDivisionError"):
        one.probe(0)


def test_a_script_that_ends_after_a_step_says_so(lab: Labs) -> None:
    with pytest.raises(ModelError, match="made 1 optimizer step, too few to measure"):
        lab(own("plain", "--steps 1")).probe()


def test_an_isolated_interpreter_is_refused(lab: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "HIDDEN_S", 0.5)
    with pytest.raises(ModelError, match="python -I"):
        lab(own("plain").replace(PYTHON, f"{PYTHON} -I")).probe()


def test_a_kill_by_the_kernel_is_an_oom(lab: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = itertools.count()
    monkeypatch.setattr(launch, "host_oom_kills", lambda: next(counts))
    words = "--batch {micro_batch} --len {seq_len}"
    result = lab(f"{BIN}/torchrun --nproc-per-node 1 {OWN} killed {words}").probe()
    assert result.verdict == Verdict.OOM
    assert result.reason == "a process was killed by the host's OOM killer"


def test_many_bytes_end_it(lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SCRATCH_BYTES", 2**20)
    monkeypatch.setattr(launch, "SCRATCH_EVERY_S", 0.0)
    result = lab(own("odd", "--odd writes --out {out} --sample-s 0.5")).probe()
    assert result.verdict == Verdict.CRASHED
    assert re.match("wrote [1-8] MiB to its scratch folder", result.reason)  # of 8, so far
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("odd", ["daemon", "session"])
def test_nothing_is_left_of_hidden_processes(lab: Labs, tmp_path: Path, odd: str) -> None:
    result = lab(own("odd", f"--odd {odd}")).probe()
    assert result.verdict == Verdict.OK, result.reason
    assert nothing_is_left(tmp_path)


def test_energy_is_that_of_the_timed_steps(tmp_path: Path) -> None:
    folder = rapl.powercap(tmp_path / "powercap")
    (tmp_path / "logs").mkdir()
    one = Lab(tmp_path / "logs", own("plain"), CpuDevice(powercap=folder))
    with rapl.burning(folder):
        result = one.probe(rule=replace(RULE, timed_least_s=1.5))
    assert result.reported.energy is not None
    power_w = result.reported.energy.joules / sum(result.reported.step_s)
    assert power_w == pytest.approx(rapl.WATTS, rel=0.1)


def test_sensors_are_read_in_timed_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heat = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    hot = FakeGpu(uuid="GPU-1", clock_mhz=900, reasons=heat)
    unused = FakeGpu(uuid="GPU-2", clock_mhz=5)
    nvml = FakeNvml(FakeGpu(uuid="GPU-0", power_mw=700_000), hot, unused)
    monkeypatch.setattr(cuda, "nvml", nvml)
    device = CpuDevice()  # the script's own; the study takes it for the first two of these
    one = Lab(tmp_path, f"{BIN}/torchrun --nproc-per-node 2 {PLAIN.partition(' ')[2]}", device)
    device.kind = "cuda"
    device.infos = tuple(replace(device.infos[0], uuid=gpu.uuid) for gpu in nvml.gpus)
    result = one.probe()
    seen = result.reported.conditions
    assert (seen.sm_clock_mhz, seen.power_w, seen.throttle_reasons) == (900, 700.0, heat)
    assert seen.thermally_throttled


def test_a_supervisor_that_is_killed_leaves_nothing(lab: Labs, tmp_path: Path) -> None:
    one = lab(f"{BIN}/torchrun --nproc-per-node 2 {PLAIN.partition(' ')[2]}")

    def kill(phase: Phase, made: int) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if phase == Phase.BUILD and "probes.supervise" in process.cmdline():
                    process.kill()

    one.runner._wiring = replace(one.runner._wiring, on_phase=kill)
    with pytest.raises(ModelError):
        one.probe()
    assert nothing_is_left(tmp_path)


@pytest.mark.gpu
def test_a_script_on_a_gpu_is_timed_and_its_memory_is_the_device_s(tmp_path: Path) -> None:
    script = own("plain", "--cuda --width 1024")
    one = Lab(tmp_path, script, open_device("cuda:0"), micro_batch="16", seq_len="512")
    result = one.probe(rule=replace(RULE, timed_steps=60))
    assert result.verdict == Verdict.OK, result.reason
    assert ran(result) == (16.0, 16.0 * 512, 1, True)
    peaks = result.reported.peaks
    step_s = [*result.reported.warmup_step_s, *result.reported.step_s]
    assert peaks.device_bytes > peaks.reserved_bytes >= peaks.allocated_bytes > 2**26
    assert peaks.device_bytes - peaks.reserved_bytes < 4 * 2**30  # the context
    figures = own_figures(tmp_path)
    if not emulating():  # whose steps take the time of the card, and the script has the host's
        assert 20 * 16 * 512 / sum(step_s[19:39]) == pytest.approx(figures[1], rel=0.03)


@pytest.mark.gpu
def test_a_capacity_that_is_too_small_on_a_gpu_is_out_of_memory(tmp_path: Path) -> None:
    script = own("plain", "--cuda --width 1024")
    one = Lab(tmp_path, script, open_device("cuda:0"), micro_batch="4096", seq_len="512",
              capacity_bytes="2GiB")  # fmt: skip
    assert one.probe().verdict == Verdict.OOM


@pytest.mark.parametrize(
    ("line", "kind", "of_host"),
    [
        ("x.pin_memory()", "cuda", True),
        ("x.cuda()", "cuda", False),
        ("x.to(device, non_blocking=pin_memory)", "cuda", False),
        ("x.pin_memory()", "cpu", False),
    ],
)
def test_failed_page_locking_is_of_host_memory(line: str, kind: str, of_host: bool) -> None:
    text = "torch.AcceleratorError: CUDA error: out of memory"
    outer = '  File "a.py", line 1, in pin_memory_first\n    go()'
    frames = f'Traceback:\n{outer}\n  File "a.py", line 3, in go\n    {line}\n{text}'
    kinds = ["torch.AcceleratorError", "builtins.RuntimeError"]
    left = Left(error=text, kinds=kinds, traceback=frames)
    assert _memory(left, kind) is of_host


@pytest.mark.parametrize(
    ("backwards", "stepped", "says"),
    [
        (1, 0, "1 backward pass and no optimizer steps"),
        (8, 1, "8 backward passes and 1"),
    ],
)
def test_of_a_slow_script_it_is_said_how_far_it_came(
    backwards: int, stepped: int, says: str
) -> None:
    seen = SimpleNamespace(processes=[1], backwards=backwards, stepped=stepped)
    assert _saw(cast(Any, seen), in_time=False).startswith(f"it had made {says}")


PHASED = f"{PYTHON} {OWN.with_name('phased_script.py')} --batch {{micro_batch}} {{words}}"


@pytest.mark.parametrize(
    ("words", "arguments", "lacks"),
    [
        ("", "--eval-every 3 --eval-batch 8 --save-every 5 --copies 2", ""),
        ("", "--eval-every 3 --eval-batch 8", "nothing was seen while saving"),
    ],
)
def test_a_launch_for_phases_ends_once_it_saw_them_or_has_no_time(
    lab: Labs, ends: Ends, words: str, arguments: str, lacks: str
) -> None:
    one = lab(PHASED, seq_len="", given=f"words={words}", phase_args=arguments)
    ends(one, lambda phase, made: bool(lacks) and made >= 20)
    result = one.probe(phases=True)
    assert (result.verdict, lacks in result.reason) == (Verdict.OK, True), result.reason
    assert bool(result.reason) == bool(lacks)
    assert result.reported.step_s == []
    counts = {name: found.count for name, found in result.reported.phases.items()}
    assert counts["evaluate"] > 0
    assert bool(counts.get("save")) != bool(lacks)


def test_a_launch_for_phases_over_the_ceiling_waits_for_none(lab: Labs, ends: Ends) -> None:
    """Nothing saves."""
    arguments = "--eval-every 8 --eval-batch 3000"
    one = lab(PHASED, seq_len="", given="words=", phase_args=arguments,
              capacity_bytes="2GiB", ceiling="20%")  # fmt: skip
    ends(one, lambda phase, made: made >= 100)
    result = one.probe(phases=True)
    evaluation = result.reported.phases["evaluate"]
    assert "evaluation" not in result.reason
    assert evaluation.peaks.device_bytes > one.space.limits.limit_bytes
    assert evaluation.count < 10


def test_a_launch_for_phases_that_fails_is_no_fault_of_the_script(lab: Labs) -> None:
    """It may be the first launch, after --resume."""
    one = lab(PHASED, seq_len="", given="words=", phase_args="--eval_steps 5")
    result = one.probe(phases=True)
    assert result.verdict == Verdict.CRASHED
    assert "unrecognized arguments: --eval_steps 5" in result.reason
