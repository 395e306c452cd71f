"""What a loader's helpers and workers leave behind, however they end."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hostile import HostileStudy, RealStudy
from tests.support.programs import ROOT

pytestmark = pytest.mark.slow

Make = Callable[..., HostileStudy]
FLAGS = ["--prefetch", "2", "--data-workers"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """With a name that is short enough for workers' sockets."""
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder:
        yield Path(folder)


def with_loaders(make: Make, temporary: Path) -> HostileStudy:
    study = make(RealStudy, TMPDIR=str(temporary))
    own = ROOT / "tests" / "support" / "loaders.py"
    (study.folder / "mine.py").write_bytes(own.read_bytes())
    return study


@pytest.mark.parametrize(
    ("function", "flags", "expected"),
    [
        ("hangs_on_exit", ["2", "--budget", "20s"], (0, "workers did not leave when told to")),
        (
            "never",
            ["0", "--budget", "6s"],
            (2, "gave no batch in 3 s; if it needs that long, write e.g. --budget 24s"),
        ),
        ("killed", ["2", "--budget", "20s"], (5, "a worker was killed (SIGKILL)")),
    ],
)
def test_nothing_is_left_of_a_loader_that_misbehaves(
    make: Make, temporary: Path, function: str, flags: list[str], expected: tuple[int, str]
) -> None:
    code, says = expected
    study = with_loaders(make, temporary)
    process = study.start("loader", f"mine:{function}", *FLAGS, *flags)
    told = "".join(process.communicate())
    assert process.returncode == code, told
    assert says in told
    assert study.residue() == [] == list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_leaves_no_process(make: Make, temporary: Path, number: signal.Signals) -> None:
    study = with_loaders(make, temporary)
    process = study.start("loader", "mine:plain", *FLAGS, "2", "--budget", "10m")
    while len(study.processes()) < 5:  # itself, the helper with its guard, two workers
        assert process.poll() is None
    process.send_signal(number)
    _, stderr = process.communicate()
    if number is not signal.SIGKILL:  # which leaves no moment to remove its folder
        assert process.returncode == 5
        assert stderr == "autotune: stopped before anything was measured\n"
        assert list(temporary.iterdir()) == []
    assert study.residue() == []
