"""What real ranks leave behind, however their study ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.choice import campaign
from tests.support.hostile import SHARED_MEMORY, HostileStudy, RealStudy

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]

SMALL = [
    "--device", "cpu", "--world-size", "2", "--depth", "1", "--seq-len", "32",
    "--micro-batch", "1:8", "--gpt", "vocab_size=256", "--checkpointing", "none",
    "--budget", "100s",
]  # fmt: skip
ENGINES = {
    "ddp": ["--engine", "ddp"],
    "deepspeed": ["--engine", "deepspeed", "--zero", "2", "--offload", "optimizer"],
    "fsdp": ["--engine", "fsdp", "--zero", "3"],
}


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ("ddp", None),
        ("deepspeed", signal.SIGKILL),
        *campaign(("ddp", signal.SIGTERM), ("ddp", signal.SIGKILL), ("fsdp", signal.SIGKILL)),
    ],
)
def test_a_study_leaves_nothing(make: Make, engine: str, number: signal.Signals | None) -> None:
    few = ["--trials", "2", "--finals", "1"] if number is None else []
    study = make(RealStudy, *SMALL, *ENGINES[engine], *few)
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


class EndlessStudy(HostileStudy):
    """Which does nothing until it is killed."""

    _program = ("-c", "import time; time.sleep(3600)")


HOLD = """
import mmap, os, sys
segment = open(sys.argv[1], "xb+")
segment.truncate(4096)
if sys.argv[2] == "mapped":
    mapped = mmap.mmap(segment.fileno(), 4096)
    os.closerange(3, 64)  # mmap has a descriptor of its own
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SHARED_MEMORY / f"autotune-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_shared_memory_of_a_stranger_is_not_ours(make: Make, segment: Path, how: str) -> None:
    study = make(HostileStudy)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(segment), how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as stranger:  # fmt: skip
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"held\n"
        assert study.residue() == []
    segment.unlink()


def test_shared_memory_that_a_stranger_left_is_not_ours(make: Make, segment: Path) -> None:
    study = make(EndlessStudy)
    process = study.begin()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(segment), "open"], stdin=subprocess.PIPE
    ) as stranger:
        while segment not in study.others:
            assert process.poll() is None
            time.sleep(0.01)
        stranger.kill()
    process.kill()
    process.communicate()
    assert segment.exists()
    assert study.residue() == []


@pytest.mark.parametrize("ended", [False, True])
def test_shared_memory_of_the_study_is_ours(make: Make, segment: Path, ended: bool) -> None:
    study = make(HostileStudy)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(segment), "mapped"], env=os.environ | study.environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as ours:  # fmt: skip
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"held\n"
        if ended:
            ours.kill()
            ours.wait()
        assert str(segment) in study.residue(within_s=0)
    segment.unlink()
