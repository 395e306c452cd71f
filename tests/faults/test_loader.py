"""What a loader's helpers and workers leave behind, however they end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

import pytest

from tests.support.hostile import HostileStudy, RealStudy
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]
FLAGS = ["--data-workers", "2", "--prefetch", "2"]


def with_loaders(make: Make) -> HostileStudy:
    study = make(RealStudy)
    own = ROOT / "tests" / "support" / "loaders.py"
    (study.folder / "mine.py").write_bytes(own.read_bytes())
    return study


@pytest.mark.parametrize(
    ("function", "flags", "code", "says"),
    [
        ("hangs_on_exit", ["--budget", "15s"], 0, "workers did not leave when told to"),
        ("never", ["--data-workers", "0", "--budget", "6s"], 2, "gave no batch in 3 s"),
        ("killed", ["--budget", "15s"], 5, "a worker was killed (SIGKILL)"),
    ],
)
def test_nothing_is_left_of_a_loader_that_misbehaves(
    make: Make, function: str, flags: list[str], code: int, says: str
) -> None:
    study = with_loaders(make)
    process = study.start("loader", f"mine:{function}", *FLAGS, *flags)
    told = "".join(process.communicate())
    assert process.returncode == code, told
    assert says in told
    assert study.residue() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_when_the_command_is_ended(make: Make, number: signal.Signals) -> None:
    study = with_loaders(make)
    process = study.start("loader", "mine:plain", *FLAGS, "--budget", "10m")
    while len(study.processes()) < 5:  # itself, the helper with its guard, two workers
        assert process.poll() is None
    process.send_signal(number)
    _, stderr = process.communicate()
    if number is signal.SIGKILL:  # which leaves no moment to remove its folder
        for folder in (study.folder / "temporary").glob("autotune-loader-*"):
            shutil.rmtree(folder)
    else:
        assert process.returncode == 5
        assert stderr == "autotune: stopped before anything was measured\n"
    assert study.residue() == []
