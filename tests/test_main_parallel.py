"""Several groups at once on this machine, for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from autotune.device.cpu import CpuDevice
from autotune.measure.runner import Result, Runner
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.machine import Machine
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from tests.support import defaults
from tests.support.programs import MEASURED_AGAIN, ranks_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]

PATIENCE_S = 240.0
TINY = ["--device", "cpu", "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2,4",
        "--gpt", "vocab_size=256", "--checkpointing", "none", "--learn-from", "none"]  # fmt: skip
OPTIONS = Options.of(
    device="cpu", depth=(1,), seq_len=(32,), micro_batch=(1,), gpt="vocab_size=256", parallel=2,
    checkpointing=("none",),
)  # fmt: skip
LONG = defaults.rule(
    warmup_tolerance=1.0, warmup_limit_s=0.0, half_width=1.0, timed_limit_s=4.0, timed_least_s=4.0
)
"""Times for seconds, however fast the machine is."""


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[tuple[list[Runner], list[list[float]]]]:
    """Two, which make steps once both have come to that, and when each made timed steps."""
    testbed = Machine(CpuDevice(), "cpu")
    space = testbed.space(OPTIONS)
    timed: list[list[float]] = [[], []]
    barrier = threading.Barrier(2)

    @contextmanager
    def together(machine: str) -> Iterator[None]:
        barrier.wait(PATIENCE_S)
        yield

    def on_phase(slot: int, phase: Phase, steps: int) -> None:
        if phase is Phase.TIMED:
            timed[slot].append(time.monotonic())

    assert testbed.slots(OPTIONS, space) == 2
    made = testbed.runners(space, [
        Wiring(
            logs=tmp_path, seed=0, budget_s=PATIENCE_S, stop=lambda: False,
            on_phase=partial(on_phase, slot), note=print, turn=together,
        )
        for slot in range(2)
    ])  # fmt: skip
    yield made, timed
    for runner in made:
        runner.close()


def test_two_groups_make_timed_steps_at_the_same_time_on_cores_of_their_own(
    runners: tuple[list[Runner], list[list[float]]], tmp_path: Path
) -> None:
    made, timed = runners
    job = defaults.job(Candidate(depth=1, seq_len=32, micro_batch=1), rule=LONG)

    def run(runner: Runner) -> Result:
        return runner.run(job, time.monotonic() + PATIENCE_S)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(run, made))
        # Ranks end with the thread that started them.
        ranks = [rank for rank in ranks_of(os.getpid()) if os.getsid(rank.pid) == rank.pid]
        first, second = (set(rank.cpu_affinity()) for rank in ranks)
    assert [result.verdict for result in results] == [Verdict.OK, Verdict.OK]
    began, ended = max(each[0] for each in timed), min(each[-1] for each in timed)
    assert began < ended
    assert not first & second
    assert sorted(path.name for path in tmp_path.glob("group*")) == [
        "group001-rank0.log", "group001-rank0.tmp", "group002-rank0.log", "group002-rank0.tmp",
    ]  # fmt: skip


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", "--out", str(folder), "--parallel", "2", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_two_groups(study: subprocess.Popen[str]) -> list[psutil.Process]:
    deadline = time.monotonic() + PATIENCE_S
    while len(ranks := ranks_of(study.pid)) < 2:
        assert time.monotonic() < deadline
        assert study.poll() is None, study.communicate()
        time.sleep(0.05)
    return ranks


def test_a_study_of_two_groups_ends_with_a_result_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study = start(folder, "--budget", "100s", "--finals", "2", *TINY)
    ranks = wait_for_two_groups(study)
    stdout, stderr = study.communicate(timeout=PATIENCE_S)
    assert (study.returncode, stderr) == (0, "")
    best = json.loads((folder / "best.json").read_text())
    assert best["unconfirmed"] in MEASURED_AGAIN
    threads = str(len(os.sched_getaffinity(0)) // 2)
    assert best["environment"]["variables"]["OMP_NUM_THREADS"] == threads
    assert "slow each other down: steps take" in stdout
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    assert json.loads((folder / "manifest.json").read_text())["options"]["parallel"] == 2


def test_a_stopped_study_of_two_groups_leaves_none(tmp_path: Path) -> None:
    study = start(tmp_path / "study", "--device", "cpu", "--budget", "200s")
    ranks = wait_for_two_groups(study)
    study.send_signal(signal.SIGINT)
    study.communicate(timeout=PATIENCE_S)
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    assert study.returncode in (4, 5)


def test_a_second_signal_ends_two_groups_at_once(tmp_path: Path) -> None:
    study = start(tmp_path / "study", "--device", "cpu", "--budget", "200s")
    ranks = wait_for_two_groups(study)
    for rank in ranks:
        rank.suspend()  # it does not react, so that the first signal takes a while
    while study.poll() is None:
        study.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert study.returncode == 128 + signal.SIGINT
    assert not psutil.wait_procs(ranks, timeout=5)[1]
