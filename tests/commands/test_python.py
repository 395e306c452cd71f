"""A study from Python."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import autotune
from autotune.errors import UsageError
from autotune.wire.budget import StopFlag


def test_an_option_that_there_is_not_is_refused_with_one_that_there_is() -> None:
    with pytest.raises(UsageError, match=r"^microbatch: unknown option; .* micro_batch\?$"):
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


def test_after_a_second_interrupt_no_third_one_comes_in_between() -> None:
    flag, killed = StopFlag(embedded=True), []
    flag.kill = lambda: killed.append(True)
    try:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        flag.restore()
    assert killed == [True]


def test_wrong_values_are_refused_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--zero 7: no such stage"):
        autotune.tune(zero=7, out=str(tmp_path / "study"))
