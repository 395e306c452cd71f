"""What real ranks leave behind, however their study ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from support.hostile import HostileStudy, RealStudy

Make = Callable[..., HostileStudy]

SMALL = [
    "--device", "cpu", "--world-size", "2", "--depth", "1", "--seq-len", "32",
    "--micro-batch", "1:8", "--vocab-size", "256", "--checkpointing", "none", "--budget", "10m",
]  # fmt: skip
ENGINES = {
    "ddp": ["--engine", "ddp"],
    "deepspeed": ["--engine", "deepspeed", "--zero", "2", "--offload", "optimizer"],
    "fsdp": ["--engine", "fsdp", "--zero", "3"],
}


@pytest.mark.parametrize(
    ("engine", "number"),
    [("ddp", None), ("ddp", signal.SIGTERM), *((e, signal.SIGKILL) for e in ENGINES)],
)
def test_no_process_shared_memory_or_temporary_file_is_left(
    make: Make, engine: str, number: signal.Signals | None
) -> None:
    few = ["--trials", "2", "--finals", "1"] if number is None else []
    study = make(RealStudy, *SMALL, *ENGINES[engine], *few)
    if engine == "deepspeed":  # its ops are compiled once per home, and kept there
        study.environment["HOME"] = os.environ["HOME"]
    process = study.begin()
    while process.poll() is None and number is not None and not study.told():
        time.sleep(0.05)
    if number is not None:
        process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == {None: 0, signal.SIGTERM: 4, signal.SIGKILL: -9}[number], stderr
    assert study.residue() == []
    if number != signal.SIGKILL:
        assert list(study.out.rglob("*.tmp")) == []
