"""Whole studies on emulated cards: what is searched, what runs out of memory, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.device.emulated.emulation import Emulation
from autotune.result.best import Best
from tests.emulated.conftest import Emulate, begin, end
from tests.support.choice import campaign
from tests.support.launches import BIN, OWN, PYTHON
from tests.support.on_cards import Row, rows, study
from tests.support.programs import ROOT, autotune, ranks_of

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

ALL = ("--sampler", "grid", "--budget", "1h", "--trials", "999", "--finals", "1")
SHAPE = ("--depth", "2", "--seq-len", "64", "--gpt", "vocab_size=256")
ONE = ("--micro-batch", "1", "--checkpointing", "none")
GONE_S = 30.0
PHASED = ROOT / "tests" / "support" / "phased_script.py"
COLOCATED = """
import sys, torch
batch, share = int(sys.argv[1]), float(sys.argv[2])
of = torch.nn
model = of.Sequential(of.Embedding(256, 1024), of.Linear(1024, 4096), of.Linear(4096, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
cache = torch.empty(int(share * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")
prompts = torch.zeros(64, 64, dtype=torch.long, device="cuda")
for step in range(1_000_000):
    with torch.no_grad():  # a rollout takes more rounds the fewer completions have room at once
        for _ in range(int(1 / share)):
            model(prompts)
    ids = torch.zeros(batch, 64, dtype=torch.long, device="cuda")
    of.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STARTED: list[subprocess.Popen[str]] = []


def start(cards: Emulation, out: Path, *flags: str) -> subprocess.Popen[str]:
    """A study in a folder, of all candidates; it ends with the test."""
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    STARTED.append(subprocess.Popen(
        [sys.executable, "-m", "autotune", "--out", str(out), *ALL, *flags], cwd=out.parent,
        env=cards.environment | {"PYTHONPATH": os.pathsep.join(paths).rstrip(os.pathsep)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ))  # fmt: skip
    return STARTED[-1]


@pytest.fixture(autouse=True)
def end_studies(emulate: Emulate) -> Iterator[None]:
    """Before their cards are gone, also where a test ran out of time."""
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def tuned(cards: Emulation, out: Path, *flags: str, trials: int = 0) -> list[Row]:
    """The rows of a study that ends well, forks its ranks and leaves no memory in use. After so
    many `trials` it is stopped: finals may take longer than its search."""
    process = start(cards, out, *flags)
    while len(rows(out)) < trials:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    if trials:
        process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=1500)
    assert process.returncode in ((0, 4) if trials else (0,)), err
    assert "imports its libraries itself" not in said + err
    assert nothing_is_held(cards)
    return rows(out)


def nothing_is_held(cards: Emulation) -> bool:
    """Whether NVML sees no memory in use, soon."""
    said = end(begin(cards, f"""
import time
from autotune.device.cuda import open_cuda
device, until = open_cuda(), time.monotonic() + {GONE_S}
while any(device.in_use_bytes()) and time.monotonic() < until:
    time.sleep(0.05)
print("in use" if any(device.in_use_bytes()) else "nothing")
"""))  # fmt: skip
    return said == "nothing\n"


def values(of: list[Row], *names: str) -> set[tuple[str, ...]]:
    """What was measured, by the axes of these names."""
    assert {row["verdict"] for row in of} <= {"ok", "pruned"}, of
    return {tuple(row[name] for name in names) for row in of if row["kind"] == "search"}


STAGES = {"ddp": "0", "deepspeed": "0,1,2,3", "fsdp": "2,3"}
COUNTS = (1, 2, 4, 8)
MORE = campaign(1, 4, 8)


@pytest.mark.parametrize("devices", [2, *MORE])
@pytest.mark.parametrize("engine", STAGES)
def test_every_stage_trains(emulate: Emulate, tmp_path: Path, engine: str, devices: int) -> None:
    cards = emulate(f"{devices}xA100-40GB")
    flags = ("--engine", engine, "--zero", STAGES[engine], *SHAPE, *ONE)
    stages = STAGES[engine].split(",")
    found = tuned(cards, tmp_path / "study", *flags, trials=len(stages))
    assert values(found, "zero_stage") == {(stage,) for stage in stages}


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", STAGES)
@pytest.mark.parametrize("devices", COUNTS)
def test_every_combination_trains(
    emulate: Emulate, tmp_path: Path, engine: str, devices: int
) -> None:
    checkpointing, allocator = "none,full,selective,host,1/2", "default,expandable"
    flags = ("--checkpointing", checkpointing, "--allocator", allocator, "--micro-batch", "1")
    found = tuned(
        emulate(f"{devices}xH100"), tmp_path / "study", *SHAPE, *flags, "--engine", engine,
        "--zero", STAGES[engine],
    )  # fmt: skip
    assert values(found, "zero_stage", "checkpointing", "allocator") == {
        (stage, each, how)
        for stage in STAGES[engine].split(",")
        for each in checkpointing.split(",")
        for how in allocator.split(",")
    }


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("devices", COUNTS)
def test_every_offload_trains(emulate: Emulate, tmp_path: Path, devices: int) -> None:
    offload = ("--engine", "deepspeed", "--zero", "2,3", "--offload", "none,optimizer,all")
    found = tuned(emulate(f"{devices}xA100-40GB"), tmp_path / "study", *offload, *SHAPE, *ONE)
    assert values(found, "zero_stage", "offload") == {
        ("2", "none"), ("2", "optimizer"), ("3", "none"), ("3", "optimizer"), ("3", "all")
    }  # fmt: skip


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", STAGES)
@pytest.mark.parametrize("devices", COUNTS)
def test_every_engine_compiles(
    emulate: Emulate, tmp_path: Path, engine: str, devices: int
) -> None:
    flags = ("--engine", engine, "--zero", STAGES[engine], "--compile", "off,on", *SHAPE, *ONE)
    found = tuned(emulate(f"{devices}xA100-40GB"), tmp_path / "study", *flags)
    assert values(found, "compile") == {("off",), ("on",)}


@pytest.mark.parametrize(
    ("spec", "flags"),
    [("1x8GiB", ()), *campaign(("1xH100", ("--capacity", "8GiB")))],
    ids=["small", "pretended"],
)
def test_what_is_too_large_is_oom_and_the_next_candidates_are_measured(
    emulate: Emulate, tmp_path: Path, spec: str, flags: tuple[str, ...]
) -> None:
    """Deep models do not even build; many samples run out in warm-up."""
    shape = ("--depth", "1,256", "--seq-len", "1024", "--gpt", "vocab_size=256,width=1024")
    sizes = ("--micro-batch", "1,1024", "--checkpointing", "none", "--zero", "0")
    found = tuned(emulate(spec), tmp_path / "study", *shape, *sizes, *flags)
    fitted = {(r["depth"], r["micro_batch"]) for r in found if r["verdict"] in ("ok", "pruned")}
    oom = {(r["depth"], r["micro_batch"]) for r in found if r["verdict"] == "oom"}
    assert ("1", "1") in fitted
    assert {("1", "1024"), ("256", "1")} <= oom
    assert {r["verdict"] for r in found} <= {"ok", "pruned", "oom", "skipped"}
    assert all(int(r["peak_device_bytes"]) < 8 << 30 for r in found if r["verdict"] == "ok")
    assert (tmp_path / "study" / "best.json").exists()


def test_memory_that_runs_out_in_a_final_makes_way_for_the_next(
    emulate: Emulate, tmp_path: Path
) -> None:
    """Contexts grow after the search, as with another driver."""
    cards, out = emulate("1x8GiB"), tmp_path / "study"
    shape = ("--depth", "2", "--seq-len", "1024", "--gpt", "vocab_size=256,width=1024")
    sizes = ("--micro-batch", "1,16", "--checkpointing", "none", "--zero", "0")
    process = start(cards, out, *shape, *sizes)
    while len(rows(out)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    cards.units[0].context = 5 << 30
    said, err = process.communicate(timeout=600)
    assert process.returncode == 0, said + err
    finals = [(row["micro_batch"], row["verdict"]) for row in rows(out) if row["kind"] == "final"]
    assert (finals[0], set(finals[1:])) == (("16", "oom"), {("1", "ok")})
    assert Best.read(out / "best.json").config.micro_batch == 1


def test_probes_run_at_the_same_time_each_on_its_own_card(
    emulate: Emulate, tmp_path: Path
) -> None:
    two = ("--world-size", "1", "--parallel", "2", "--zero", "0")
    flags = ("--micro-batch", "1,2", "--checkpointing", "none")
    found = tuned(emulate("2xA100-40GB"), tmp_path / "study", *SHAPE, *two, *flags, trials=2)
    assert values(found, "micro_batch") == {("1",), ("2",)}


@pytest.mark.parametrize("devices", [2, *campaign(8)])
def test_a_study_that_is_killed_leaves_no_memory_in_use_and_goes_on(
    emulate: Emulate, tmp_path: Path, devices: int
) -> None:
    cards, out = emulate(f"{devices}xA100-40GB"), tmp_path / "study"
    process = start(
        cards, out, *SHAPE, "--micro-batch", "1,2", "--checkpointing", "none", "--zero", "0"
    )
    while not (rows(out) and ranks_of(process.pid)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert not nothing_is_held_now(cards)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert nothing_is_held(cards)
    autotune("--resume", out, env=cards.environment)
    assert values(rows(out), "micro_batch") == {("1",), ("2",)}


def nothing_is_held_now(cards: Emulation) -> bool:
    return not any(cards.held_bytes(unit) for unit in range(len(cards.units)))


@pytest.mark.parametrize("devices", [*campaign(1), 2])
def test_a_script_is_launched_on_the_cards(emulate: Emulate, tmp_path: Path, devices: int) -> None:
    cards = emulate(f"{devices}xA100-40GB")
    words = "plain --cuda --batch {micro_batch} --len {seq_len}"
    script = f"{BIN}/torchrun --nproc-per-node {devices} {OWN} {words}"
    script = script if devices > 1 else f"{PYTHON} {OWN} {words}"
    found = tuned(
        cards, tmp_path / "study", "--script", script, "--micro-batch", "2,4", "--seq-len", "32",
        "--phase-args", "none", trials=2,
    )  # fmt: skip
    assert values(found, "micro_batch") == {("2",), ("4",)}
    assert all(int(row["peak_device_bytes"]) > 500 << 20 for row in found)  # with the context


def test_a_candidate_whose_evaluation_has_no_room_makes_way_for_the_next(
    emulate: Emulate, tmp_path: Path
) -> None:
    cards = emulate("1x3GiB")
    script = f"{PYTHON} {PHASED} --device cuda --batch {{micro_batch}} --eval-times 80"
    found = tuned(
        cards, tmp_path / "study", "--script", f"{script} --eval-every 90000", "--micro-batch",
        "64,256", "--phase-args", "--eval-every 5 --copies 2 --save-every 5",
    )  # fmt: skip
    assert values([row for row in found if row["kind"] == "search"], "micro_batch") == {
        ("64",), ("256",)
    }  # fmt: skip
    ended = {row["micro_batch"]: row for row in found if row["kind"] == "phases"}
    assert ended["256"]["verdict"] in ("oom", "over_ceiling")
    assert "in evaluation" in ended["256"]["reason"]
    best = Best.read(tmp_path / "study" / "best.json")
    assert (best.config.micro_batch, best.unseen) == (64, ())
    phases = best.measured.phases
    assert phases is not None
    train, evaluate = phases["train"].peak_bytes, phases["evaluate"].peak_bytes
    assert train.device + (256 << 20) < evaluate.device == best.measured.peak_bytes.device
    assert train.allocated + (256 << 20) < evaluate.allocated


def test_the_largest_share_for_generation_that_leaves_room_to_train_wins(
    emulate: Emulate, tmp_path: Path
) -> None:
    cards = emulate("1x24GiB")
    (tmp_path / "train.py").write_text(COLOCATED)
    found = tuned(
        cards, tmp_path / "study", "--script", f"{PYTHON} train.py {{micro_batch}} {{share}}",
        "--micro-batch", "8", "--axis", "share=0.2,0.7,0.79", "--objective", "samples_per_s",
    )  # fmt: skip
    ended = {row["own"]: row["verdict"] for row in found if row["kind"] == "search"}
    assert ended.pop("share=0.79") == "over_ceiling"  # of 80 %: without room for the training
    assert set(ended) == {"share=0.2", "share=0.7"}
    best = Best.read(tmp_path / "study" / "best.json")
    assert best.config.own == "share=0.7"
    total = 24 << 30
    assert 0.7 * total < best.measured.peak_bytes.device < 0.8 * total


def test_a_model_evaluates_and_saves_after_its_search(emulate: Emulate, tmp_path: Path) -> None:
    out = tmp_path / "study"
    tuned(
        emulate("2xA100-80GB"), out, "--model", "llama-3-8b", "--depth", "1", "--seq-len", "1024",
        "--micro-batch", "1", "--engine", "fsdp", "--zero", "3", "--eval-batch", "8", "--save",
        "full",
    )  # fmt: skip
    phases = Best.read(out / "best.json").measured.phases
    assert phases is not None
    logits = 4 * 8 * 1024 * 128256
    evaluation, saving = phases["evaluate"].peak_bytes, phases["save"].peak_bytes
    assert evaluation.allocated > 3 * logits  # own ones, and those of both ranks
    whole = 12 * 1.27e9  # weights and the optimizer's state
    assert saving.allocated < evaluation.allocated
    assert saving.host < whole / 2  # no copy from a card takes memory of this machine


def test_another_card_is_no_place_to_go_on_and_the_same_one_verifies(
    emulate: Emulate, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    cards = emulate("1xA100-80GB")
    # The card's time is modelled; the host's is not. Steps of so many samples hide it.
    long = ("--seq-len", "1024", "--micro-batch", "256", "--checkpointing", "none")
    tuned(cards, out, "--depth", "2", "--gpt", "vocab_size=256", *long, "--zero", "0")
    err = autotune("--resume", out, code=2, env=emulate("1xH100").environment).stderr
    assert err.startswith("autotune: --resume: fingerprint.devices.devices.0.name was NVIDIA A100")
    assert len(err.splitlines()) == 1
    done = autotune("verify", out, "--steps", "40", code=None, env=cards.environment)
    # A busy host still decides between a result that holds and one that may be slower.
    assert done.returncode in (0, 5), done.stdout + done.stderr
    verified = Best.read(out / "best.json").verified
    assert verified is not None
    assert verified.share_of_measured == pytest.approx(1, 0.1)


@pytest.mark.parametrize(
    "model",
    ["factory:own:known", *campaign(
        "llama-3-8b-tiny", "mixtral-tiny", "mamba2-tiny", "t5-small-tiny", "bert-large-tiny")],
)  # fmt: skip
@pytest.mark.parametrize("stage", ["0", *campaign("3")])
def test_models_of_others_train(emulate: Emulate, tmp_path: Path, model: str, stage: str) -> None:
    cards = emulate("2xA100-40GB")
    flags = ("--model", model, "--seq-len", "64", "--zero", stage, *ONE)
    found = tuned(cards, tmp_path / "study", *flags, trials=1)
    assert values(found, "zero_stage") == {(stage,)}


def test_steps_take_the_time_of_the_card(emulate: Emulate, tmp_path: Path) -> None:
    """By its data sheet, an H100 is up to three times as fast as an A100. Steps of so many samples
    hide the host's time, which is not modelled."""
    shape = ("--depth", "6", "--seq-len", "1024", "--micro-batch", "96", "--checkpointing", "none")
    step_s = [
        float(row["step_s_median"])
        for card in ("A100-80GB", "H100")
        for row in tuned(emulate(f"1x{card}"), tmp_path / card, *shape, trials=1)[:1]
    ]
    assert 1.3 < step_s[0] / step_s[1] < 3.2


def test_unlike_cards_have_micro_batches_and_ceilings_of_their_own(
    emulate: Emulate, tmp_path: Path
) -> None:
    out, shape = tmp_path / "study", ("--depth", "4", "--seq-len", "1024")
    found = tuned(
        emulate("1x24GiB+1x48GiB"), out, *shape, "--checkpointing", "none",
        "--micro-batch-per-rank", "24+24,24+60,60+60",
    )  # fmt: skip
    verdicts = {row["micro_batch_per_rank"]: row["verdict"] for row in found}
    assert verdicts["60+60"] in ("over_ceiling", "oom")
    assert {verdicts["24+24"], verdicts["24+60"]} <= {"ok", "pruned"}
    best = Best.read(out / "best.json")
    assert best.limits.rank_capacities == (24 * 2**30, 48 * 2**30)
    assert best.measured.rank_peak_bytes is not None


def test_the_faster_of_unlike_cards_gets_more_samples(emulate: Emulate, tmp_path: Path) -> None:
    out, shape = tmp_path / "study", ("--depth", "8", "--seq-len", "1024")
    tuned(
        emulate("1xRTX3090+1xRTXA6000"), out, *shape, "--checkpointing", "none",
        "--micro-batch-per-rank", "8+8,8+11,8+32",
    )  # fmt: skip
    assert Best.read(out / "best.json").config.micro_batch_per_rank == "8+11"


def test_images_with_text_are_weighed_and_the_largest_decides(
    emulate: Emulate, tmp_path: Path
) -> None:
    """On cards that compute nothing a model cannot look at its images' sizes. Of both, also in
    finals."""
    peaks = {}
    for trials, sizes in ((2, "448x448,448x896"), (1, "448x448")):
        rows = tuned(
            emulate("1xA100-80GB"), tmp_path / sizes, "--model", "qwen2.5-vl-3b-tiny",
            "--image-size", sizes, "--seq-len", "64", "--micro-batch", "8",
            "--checkpointing", "none", trials=trials,
        )  # fmt: skip
        assert [row["kind"] for row in rows[:trials]] == ["search", "final"][:trials]
        assert {row["verdict"] for row in rows} <= {"ok", "pruned"}
        peaks[sizes] = max(float(row["peak_device_bytes"]) for row in rows)
    assert peaks["448x448,448x896"] > 1.01 * peaks["448x448"]


def test_a_parameter_that_a_model_makes_on_the_host_trains_on_the_card(tmp_path: Path) -> None:
    [row] = study(
        tmp_path / "study", "--device", "emulated:1x24GiB", "--model", "wav2vec2-base-tiny",
        "--micro-batch", "2", "--seq-len", "1024", "--checkpointing", "none",
    )  # fmt: skip
    assert row["verdict"] == "ok"
