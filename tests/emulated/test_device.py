"""`--device emulated:`: one rank stands for all, and nothing of it is called measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.device.emulated.emulation import Emulation, nodes_of
from autotune.space.space import NO_LIMIT
from autotune.wire.emulated import ALONE
from tests.emulated.conftest import Emulate, ranks
from tests.support.launches import OWN, PYTHON
from tests.support.on_cards import study
from tests.support.programs import autotune

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

LLAMA = (
    "--model", "llama-3-8b-tiny", "--depth", "2", "--seq-len", "256", "--micro-batch", "2,8",
    "--checkpointing", "none",
)  # fmt: skip
PEAKS = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes")


@pytest.mark.parametrize(
    ("count", "flags"),
    [
        (4, ("--engine", "fsdp", "--zero", "3")),
        *(pytest.param(8, flags, marks=pytest.mark.campaign) for flags in (
            ("--engine", "fsdp", "--zero", "2,3"),
            ("--engine", "deepspeed", "--zero", "0,1,2,3"),
            ("--engine", "ddp", "--zero", "0"),
        )),
    ],
)  # fmt: skip
def test_one_rank_weighs_as_all_do(
    emulate: Emulate, tmp_path: Path, count: int, flags: tuple[str, ...]
) -> None:
    spec = f"{count}xA100-40GB"
    trials = 2 * (1 + flags[-1].count(","))
    real = study(tmp_path / "real", *LLAMA, *flags, on=emulate(spec), trials=trials)
    own = ("--device", f"emulated:{spec}", *LLAMA, *flags)
    alone = {row["key"]: row for row in study(tmp_path / "alone", *own)}
    for row in (each for each in real if each["kind"] == "search"):
        for name in PEAKS:
            least = 8 << 20  # a few segments of tiny models
            assert int(alone[row["key"]][name]) == pytest.approx(int(row[name]), 0.01, least), name
        host = int(alone[row["key"]]["peak_host_bytes"])
        assert host == pytest.approx(int(row["peak_host_bytes"]), 0.05)


def test_a_context_is_as_a_real_card_had_it(emulate: Emulate, tmp_path: Path) -> None:
    cards = emulate("1xA100-40GB")
    cards.units[0].context = 900 << 20
    little = ("--depth", "1", "--seq-len", "64", "--micro-batch", "1", "--checkpointing", "none")
    [real, *_] = study(tmp_path / "real", *little, on=cards, trials=1)
    told = tmp_path / "real" / "manifest.json"
    manifest = json.loads(told.read_text())
    assert manifest["fingerprint"]["devices"].pop("emulated")
    told.write_text(json.dumps(manifest))
    learn = ("--learn-from", str(tmp_path / "real"))
    own = ("--device", "emulated:1xA100-40GB", *little)
    contexts = [
        int(row["peak_device_bytes"]) - int(row["peak_reserved_bytes"])
        for row in (
            real,
            *study(tmp_path / "learnt", *own, *learn)[:1],
            *study(tmp_path / "own", *own)[:1],
        )
    ]
    assert contexts == [900 << 20, 900 << 20, 510 << 20]
    planned = autotune("plan", "--gpus", "A100-40GB", *little, "--json", *learn)
    [row] = json.loads(planned.stdout)["rows"]
    assert row["peak"]["bytes"] == int(real["peak_device_bytes"])


def test_a_script_runs_on_cards_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever real devices are hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    script = f"{PYTHON} {OWN} plain --cuda --batch {{micro_batch}} --len {{seq_len}}"
    flags = ("--script", script, "--micro-batch", "2", "--seq-len", "32",
             "--phase-args", "none")  # fmt: skip
    [row] = study(tmp_path / "study", "--device", "emulated:1xT4", *flags)
    assert row["verdict"] == "ok"
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert (best["device"], best["confirmed"]) == ("emulated", False)
    plan = ("--gpus", "T4", "--depth", "2", "--seq-len", "32", "--formulas")
    said = autotune("plan", *plan, "--learn-from", tmp_path / "study").stderr
    assert "emulated Tesla T4; its memory is taken over, its speed is not" in said


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_a_plan_weighs_as_a_study_does(tmp_path: Path, engine: str) -> None:
    """Its ranks are forked: stderr says nothing else."""
    flags = (*LLAMA, "--engine", engine, "--zero", "3")
    found = study(tmp_path / "study", "--device", "emulated:4xA100-40GB", *flags)
    plan = ("plan", "--gpus", "4xA100-40GB", *flags, "--json")
    done = autotune(*plan, env={"TMPDIR": str(tmp_path)})
    assert done.stderr == ""
    [row] = json.loads(done.stdout)["rows"]
    assert row["weighed"]
    assert row["candidate"]["micro_batch"] == 8
    [same] = (int(each["peak_device_bytes"]) for each in found if each["micro_batch"] == "8")
    assert row["peak"]["bytes"] == pytest.approx(same, 0.01)
    assert [path.name for path in tmp_path.iterdir() if "temporary" not in path.name] == ["study"]


def test_a_study_weighs_its_own_space_first(emulate: Emulate, tmp_path: Path) -> None:
    """In a process of its own: the devices of the study stay what they are. In a live group the
    allocator goes on from what was weighed or probed before."""
    flags = ("--depth", "6", "--seq-len", "512", "--micro-batch", "1:48", "--checkpointing",
             "none", "--capacity", "8GiB", "--sampler", "frontier", "--weigh")  # fmt: skip
    found = study(tmp_path / "study", *flags, on=emulate("1xA100-40GB"))
    body = json.loads((tmp_path / "study" / "manifest.json").read_text())
    [earlier] = body["earlier"]
    assert (earlier["folder"], earlier["timed"]) == ("emulated:1xA100-40GB", False)
    weighed = {each["candidate"]["micro_batch"]: each["device_bytes"] for each in earlier["seen"]}
    assert weighed
    peaks = {int(row["micro_batch"]): row["peak_device_bytes"] for row in found}
    for each in [each for each in weighed if peaks.get(each)]:
        assert weighed[each] == pytest.approx(int(peaks[each]), 0.06)
    assert {row["verdict"] for row in found} <= {"ok", "pruned"}


def test_a_result_says_that_nothing_was_timed(tmp_path: Path) -> None:
    out = tmp_path / "study"
    flags = ("--engine", "fsdp", "--zero", "3")
    found = study(out, "--device", "emulated:2x2xA100-40GB", *LLAMA, *flags)
    assert {row["kind"] for row in found} == {"search"}
    best = json.loads((out / "best.json").read_text())
    assert (best["device"], best["confirmed"]) == ("emulated", False)
    assert best["unconfirmed"] == "emulated GPUs"
    assert (best["config"]["world_size"], best["config"]["nodes"]) == (4, 2)
    assert best["fingerprint"]["devices"]["emulated"] is True
    assert best["limits"]["host_capacity_bytes"] == NO_LIMIT
    written = list((out / "exports").glob("*.y*ml"))
    assert written
    for path in written:
        assert "nothing was timed" in path.read_text(), path.name
    assert autotune("verify", out, code=2).stderr == (
        "autotune: best.json: comes from emulated GPUs, which have no speed to verify\n"
    )


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("8xQ100", "unknown card; did you mean H100? write its memory"),
        ("8xblackhole", "unknown card; write its memory"),
        ("99xH100", "at most 64 devices"),
        ("1,2xH100", "one number of GPUs"),
        ("0x8xH100", "at least one machine"),
        ("8x32TiB", "more memory than a process can address"),
    ],
)
def test_cards_that_cannot_be(spec: str, why: str, run: Callable[..., Any]) -> None:
    err = run("--device", f"emulated:{spec}", "--budget", "1m", code=2).err
    assert err.startswith(f"autotune: --device emulated {spec}: {why}")
    assert err.count("\n") == 1


def test_machines_are_read() -> None:
    assert (nodes_of("8xH100"), nodes_of("2x8xH100"), nodes_of("3 x 4x24GiB")) == (1, 2, 3)
    assert nodes_of("H100") == 1


def of_one(cards: Emulation, program: str) -> Any:
    """What one rank printed at last that stands for all."""
    cards.environment |= {ALONE: "1", "TORCH_NCCL_RANKS_PER_ROOT": "300"}
    return ranks(cards, program, "", 1, join=False)[0]


def test_one_rank_meets_nobody(emulate: Emulate) -> None:
    """All that it would get of others is its own."""
    program = """
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=300)
total = there(1.0, 2.0)
dist.all_reduce(total)
parts = [there(0.0, 0.0) for _ in range(300)]
dist.all_gather(parts, there(3.0, 4.0))
some = dist.new_group(list(range(0, 300, 100)))
few = there(5.0)
dist.all_reduce(few, group=some)
for turn in range(3):
    dist.send(few, 1)
got = there(0.0)
dist.recv(got, 1)
dist.barrier()
print(json.dumps([here(total), here(parts[299]), here(few), here(got)]))
"""
    found = of_one(emulate("1xA100-40GB"), program)
    assert found == [[300.0, 600.0], [3.0, 4.0], [15.0], [15.0]]


def test_a_group_over_machines_waits_for_the_network(emulate: Emulate) -> None:
    program = """
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=4)
of_all = torch.empty(1 << 28, device="cuda")
dist.all_reduce(of_all)
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
began.record()
dist.all_reduce(of_all)
ended.record()
ended.synchronize()
print(began.elapsed_time(ended))
"""
    one, two = (of_one(emulate(spec), program) for spec in ("4xH100", "2x2xH100"))
    assert two > 5 * one


SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--how", default="")
asked = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
if asked.how == "waits":
    open("waits", "w").close()
    __import__("time").sleep(600)
if asked.how == "fft":
    torch.fft.fft(torch.ones(64, device="cuda"))
if asked.how == "allocator":
    own = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")
    torch.cuda.memory.change_current_allocator(own)
if asked.how == "function":
    __import__("ctypes").CDLL(None).cudaMallocArray(None)
    __import__("os").abort()
if asked.how == "convolution":
    torch.nn.Conv2d(3, 8, 3).cuda()(torch.ones(2, 3, 8, 8, device="cuda"))
for step in range(200):
    loss = model(torch.randn(1024 * asked.batch, 2048, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if asked.how == "stops" and loss.item() == 0:
        break
"""


def plan_of_script(
    folder: Path, how: str, *flags: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    script = f"{PYTHON} train.py --how={how} --batch {{micro_batch}}"
    temporary = folder / "temporary"
    temporary.mkdir()
    plan = ("plan", "--gpus", "T4", "--script", script, *flags)
    done = autotune(*plan, code=code, cwd=folder, env={"TMPDIR": str(temporary)})
    assert not list(temporary.glob("emulated-gpus-*"))
    assert not list(temporary.glob("autotune-plan-*"))
    return done


def test_a_plan_weighs_a_script(tmp_path: Path) -> None:
    """What fits is what the script itself takes; torch's own kernels stand in for cuDNN's."""
    flags = ("--micro-batch", "1:512", "--ceiling", "50%", "--json")
    told = json.loads(plan_of_script(tmp_path, "convolution", *flags).stdout)
    [row] = told["rows"]
    fits = row["candidate"]["micro_batch"]
    assert row["verdict"] == "ok"
    assert (row["next"]["verdict"], row["next_micro_batch"]) == ("over_ceiling", fits + 1)
    assert row["peak_bytes"] <= told["limit_bytes"] < row["next"]["peak_bytes"]
    # A sample's activations, with or without their gradients.
    assert 48 << 20 <= row["next"]["peak_bytes"] - row["peak_bytes"] <= 144 << 20
    assert row["modelled_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fft", "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR (emulated GPUs have no cuFFT)"),
        ("function", "(emulated GPUs have no cudaMallocArray)"),
        ("stops", "losses are 0 on emulated GPUs: it may have stopped for that"),
    ],
)
def test_a_script_that_emulation_breaks_is_told_why(tmp_path: Path, how: str, why: str) -> None:
    done = plan_of_script(tmp_path, how, code=5)
    [line] = done.stderr.splitlines()
    assert line.endswith(why)


def test_an_allocator_whose_peak_nobody_tells_is_refused(tmp_path: Path) -> None:
    done = plan_of_script(tmp_path, "allocator", code=5)
    assert done.stderr.rstrip().endswith(
        "leave out torch.cuda.memory.change_current_allocator while it measures"
    )


def test_where_a_script_does_not_fit_the_plan_says_so(tmp_path: Path) -> None:
    done = plan_of_script(tmp_path, "", "--micro-batch", "1024", code=3)
    assert "ran out of memory" in done.stderr


def test_a_plan_of_a_script_that_is_stopped_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """Nothing that fits is known then, which is no answer."""
    (tmp_path / "train.py").write_text(SCRIPT)
    script = f"{PYTHON} train.py --how=waits --batch {{micro_batch}}"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    plan = subprocess.Popen(
        [sys.executable, "-m", "autotune", "plan", "--gpus", "1,2xT4", "--script", script],
        env=os.environ | {"TMPDIR": str(temporary)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    while not (tmp_path / "waits").exists():
        assert plan.poll() is None
        time.sleep(0.2)
    plan.send_signal(signal.SIGINT)
    printed, said = plan.communicate(timeout=60)
    assert plan.returncode == 4
    assert not printed  # no empty table
    assert said.count("stopped after 0 of 1 rows") == 1
    assert not list(temporary.glob("*"))
