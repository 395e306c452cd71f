"""The machine without a log; its devices are a fake NVML's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from autotune.advise.diagnose.machine import (
    Host,
    SeenGpu,
    SeenMachine,
    bottleneck,
    lines,
    look,
    next_command,
)
from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from autotune.device import cuda
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml, FakeProcess
from tests.support.programs import ROOT

HOST = Host(
    total_bytes=100 * GIB, used_bytes=40 * GIB, swap_total_bytes=10 * GIB, swap_used_bytes=0,
    shm_total_bytes=64 * GIB, shm_used_bytes=0,
)  # fmt: skip
EMPTY = SeenMachine(
    gpus=(), no_gpu=None, holders=(), host=HOST, driver=None, packages={}, environment={}
)


def gpu(share: float, percent: int | None = 95, index: int = 0) -> SeenGpu:
    return SeenGpu(
        index=index, name="H200", total_bytes=100 * GIB, used_bytes=round(share * 100 * GIB),
        utilisation_percent=percent,
    )  # fmt: skip


def fake(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    monkeypatch.setattr(cuda, "nvml", FakeNvml(*gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0, "safe"), (0.849, "safe"), (0.85, "marginal"), (0.899, "marginal"), (0.9, "danger")],
)
def test_a_share_of_memory_has_its_level(share: float, level: str) -> None:
    assert gpu(share).level == level


def test_holders_of_memory_have_the_command_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = FakeProcess(os.getpid(), 30 * GIB)
    fake(monkeypatch, FakeGpu(uuid="GPU-1", used=40 * GIB, compute=[held]))
    found = look()
    [holder] = found.holders
    assert (holder.pid, holder.held_bytes, holder.orphan) == (os.getpid(), 30 * GIB, False)
    said = "\n".join(lines(found))
    assert f"30.00 GiB: process {os.getpid()} (" in said
    assert f"to end it: kill {os.getpid()}" in said
    assert "40.00 GiB of 140.00 GiB, 29%: safe, computes 97 %" in said
    assert "driver 580.65.06" in said


def test_a_process_that_is_not_ours_to_see_is_listed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, FakeGpu(uuid="GPU-1", compute=[FakeProcess(2**22 + 1, None)], busy=None))
    found = look()
    assert (found.holders[0].command, found.holders[0].held_bytes) == ("?", 0)
    assert found.gpus[0].utilisation_percent is None
    assert "unknown: process" in "\n".join(lines(found))


def test_host_memory_is_the_bottleneck_where_it_swaps_beside_an_empty_device() -> None:
    full = replace(HOST, used_bytes=97 * GIB, swap_used_bytes=8 * GIB)
    said = bottleneck(replace(EMPTY, host=full, gpus=(gpu(0.5),)))
    assert said is not None
    assert said.startswith("host memory: 97% in use and 80% of swap; device 0 is only 50%")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(EMPTY, gpus=(gpu(0.95),)), "device memory"),
        (replace(EMPTY, gpus=(gpu(0.6, 5),)), "not memory"),
        (replace(EMPTY, host=replace(HOST, shm_used_bytes=60 * GIB)), "/dev/shm"),
        (replace(EMPTY, host=replace(HOST, used_bytes=95 * GIB)), "host memory"),
    ],
)
def test_a_bottleneck_is_named(found: SeenMachine, says: str) -> None:
    said = bottleneck(found)
    assert said is not None
    assert said.startswith(says)


def test_nothing_is_named_where_nothing_is_scarce() -> None:
    assert bottleneck(replace(EMPTY, gpus=(gpu(0.5),))) is None


def test_the_next_command_takes_the_devices_that_are_free() -> None:
    both = replace(EMPTY, gpus=(gpu(0.8), gpu(0.0, 0, index=1)))
    assert next_command(both).endswith("--device cuda:1")
    assert next_command(replace(EMPTY, gpus=(gpu(0.8),))).endswith("diagnose --watch")
    assert next_command(EMPTY) == "python -m autotune --budget 30m"


def test_it_is_told_as_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, FakeGpu(uuid="GPU-1", used=130 * GIB))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert main(["diagnose", "--json"]) == ExitCode.FOUND
    body = json.loads(capsys.readouterr().out)
    assert body["gpus"][0]["level"] == "danger"
    assert body["environment"] == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert body["packages"]["torch"]


def test_watching_ends_with_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    assert main(["diagnose", "--watch"]) == ExitCode.FOUND
    assert "Next: " in capsys.readouterr().out


def test_watch_is_for_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--watch", "log"]) == ExitCode.USAGE
    assert "--watch" in capsys.readouterr().err


def test_reading_a_log_loads_nothing_heavy() -> None:
    code = (
        "import sys; from autotune.commands.app import main; main(['diagnose', '-']);"
        "print(sorted({'torch', 'optuna', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="x\n", cwd=ROOT, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.endswith("[]\n")


def test_watching_into_a_pipe_writes_at_once() -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "autotune", "diagnose", "--watch"], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    first = running.stdout.readline()
    running.stdout.close()  # as `head -1` does
    assert running.wait(60) == ExitCode.FOUND
    assert "ottleneck" in first
    assert running.stderr is not None
    assert running.stderr.read() == ""
