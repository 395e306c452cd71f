"""`python -m autotune loader`, with real helpers and workers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.advise.loader import measuring
from autotune.commands.exits import ExitCode
from tests.support.programs import ROOT, python

OWN = ROOT / "tests" / "support" / "loaders.py"
Run = Callable[..., Any]
SAMPLE = ROOT / "results" / "samples" / "cpu-2-cores"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's module, which commands are run in. They time for a second."""
    monkeypatch.setattr(measuring, "MOST_S", 1.0)
    (tmp_path / "mine.py").write_bytes(OWN.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


# With real processes.


@pytest.mark.slow
def test_a_slow_loader_is_found_and_helped(mine: Path, run: Run) -> None:
    flags = ["--data-workers", "0,2", "--prefetch", "2", "--micro-batch", "8", "--json"]
    flags += ["--needs", "1e9", "--budget", "120s"]  # of a busy machine
    told = json.loads(run("loader", "mine:slow", *flags, code=ExitCode.NOTHING_FITS).out)
    without, two = told["rows"]
    assert (without["shape"], without["workers"], two["workers"]) == ([8, 16], 0, 2)
    assert without["samples_per_s"]["median"] < 1 / 0.002
    assert two["tokens_per_s"]["median"] > without["tokens_per_s"]["median"]
    assert (told["enough"], told["chosen"]["workers"]) == (False, 2)
    assert told["lost_share"] > 0.9
    assert without["rounds"] == 2 >= two["rounds"] >= 1  # a busy machine has no time for more


@pytest.mark.slow
def test_a_free_loader_needs_no_workers(mine: Path, run: Run) -> None:
    flags = ["--data-workers", "0,1", "--prefetch", "2", "--needs", "10", "--budget", "20s"]
    out = run("loader", "mine:free", *flags).out
    assert "mine:free: batches of 4 x 16\n" in out
    assert "\nSmallest that is no bottleneck: num_workers 0 gives " in out
    assert "\n--pin-memory on: needs a GPU, and " in out


@pytest.mark.slow
def test_a_result_says_what_is_to_be_fed(mine: Path, run: Run) -> None:
    flags = ["--best", str(SAMPLE), "--data-workers", "0", "--budget", "12s", "--json"]
    told = json.loads(run("loader", "mine:sized", *flags).out)
    assert told["needed_per_s"] == pytest.approx(5439.5, rel=1e-4)
    assert told["rows"][0]["shape"] == [12, 128]
    assert told["training_bytes"] == 743059456
    assert told["chosen"] == {"workers": 0, "prefetch": None, "pin_memory": False}


@pytest.mark.slow
def test_loaders_of_all_ranks_run_side_by_side_without_torch_in_this_process(mine: Path) -> None:
    code = (
        "import sys; from autotune.advise.loader import measuring\n"
        "from autotune.commands.app import main\n"
        "measuring.MOST_S = 1.0\n"
        "code = main(['loader', 'mine:plain', '--ranks', '2', '--data-workers', '1',"
        " '--prefetch', '2', '--budget', '25s', '--json'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)"
    )
    ran = python("-c", code, timeout=200)
    assert ran.stderr == ""
    told = json.loads(ran.stdout)
    [row] = told["rows"]
    assert told["ranks"] == 2
    assert row["host_bytes"] > 2 * row["worker_bytes"] + row["loader_bytes"]


@pytest.mark.slow
def test_a_long_temporary_path_is_no_obstacle(
    mine: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = mine / ("long" * 20)
    longest.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(longest))
    flags = ["--data-workers", "1", "--prefetch", "2", "--budget", "20s"]
    run("loader", "mine:plain", *flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("nowhere:make", 2, "nowhere:make: No module named 'nowhere', looked for in"),
        ("mine:error", 5, "RuntimeError: my own mistake"),
    ],
)
def test_what_cannot_be_measured_is_said_once(
    mine: Path, run: Run, function: str, code: int, says: str
) -> None:
    err = run("loader", function, code=code).err
    last = err.strip().splitlines()[-1]
    assert says in last
    assert last.startswith("autotune: ")
    raised = code == ExitCode.NO_MEASUREMENT
    assert err.count("Traceback") == raised
    assert ("mine.py" in err) == raised
