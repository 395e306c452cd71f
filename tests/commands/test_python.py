"""A study from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import autotune
from autotune.budget import StopFlag
from autotune.errors import UsageError
from tests.support.programs import ROOT

TINY = (
    "device='cpu', depth=1, seq_len=(32,), micro_batch=[1, 2], vocab_size=256,"
    " checkpointing='none', trials=2, finals=1, learn_from='none'"
)


@pytest.mark.slow
def test_a_study_returns_its_result_and_leaves_nothing_running(tmp_path: Path) -> None:
    code = (
        "import autotune, sys\n"
        f"best = autotune.tune(budget='60s', out='study', {TINY})\n"
        "print('FOUND', best.config.micro_batch, best.confirmed, 'torch' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=200,
    )  # fmt: skip
    last = ran.stdout.splitlines()[-1].split()
    assert (last[0], last[2:]) == ("FOUND", ["True", "False"])
    assert (tmp_path / "study" / "trials.csv").exists()
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert not mine


def test_an_option_that_there_is_not_is_refused_with_one_that_there_is() -> None:
    with pytest.raises(UsageError, match=r"^microbatch: there is no .* micro_batch\?$"):
        autotune.tune(microbatch=4)


def test_in_a_thread_no_signal_is_heard_and_none_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)

    def use() -> bool:
        flag = StopFlag(embedded=True)
        changed = signal.getsignal(signal.SIGINT) is not before
        flag.restore()
        return changed or bool(flag)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(use).result() is False
    assert signal.getsignal(signal.SIGINT) is before


def test_wrong_values_are_refused_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--zero 7: no such stage"):
        autotune.tune(zero=7, out=str(tmp_path / "study"))


@pytest.mark.slow
def test_nothing_that_fits_is_an_error_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(autotune.NothingFoundError) as error:
        autotune.tune(
            budget="2m", out=str(tmp_path / "study"), device="cpu", depth=2, seq_len=256,
            micro_batch=8, ceiling="1%", learn_from="none",
        )  # fmt: skip
    assert error.value.code == 3
