"""How long reading takes: proportional to what a log holds, whatever that is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from autotune.advise.diagnose import amounts
from autotune.advise.diagnose.context import Context
from autotune.advise.diagnose.memory import SPEAKERS, ran_out
from autotune.advise.diagnose.prefixes import take_apart
from autotune.advise.diagnose.wordings import FIRST, LAST

RUNS = ("9", "a", "A", "_", " ", "\t", ".", ",", "-", "/", ":", "[", "(", '"', "'", "=", "|", "*",
        "#", "9,", "9.", "9 ", "a ", "a.", "a:", "a/", "a=", "A_", "[9", "(a", "\\n")  # fmt: skip
HEADS = ("", "[rank", "{'a': '", "Mem:", "base_model")
SIZE = 3000
READERS: dict[str, Callable[[str], object]] = {
    "prefixes": take_apart,
    "context": lambda line: Context().look([line]),
    "amounts": amounts.read,
    "wordings": lambda line: [each.match(line) for each in (*FIRST, *LAST)],
    "memory": lambda line: (ran_out(line), [each.match(line) for each in SPEAKERS]),
}


def cpu_s(reader: Callable[[str], object], line: str) -> float:
    began = time.process_time()
    reader(line)
    return time.process_time() - began


@pytest.mark.parametrize("name", READERS)
def test_a_long_run_of_anything_is_read_in_linear_time(name: str) -> None:
    """Twice as much takes about twice as long; what is quadratic takes four times, each time."""
    reader = READERS[name]

    def is_linear(line: str) -> bool:
        half = line[: len(line) // 2]
        return any(cpu_s(reader, line) < 2.8 * cpu_s(reader, half) for _ in range(4))

    lines = (f"{head}{run * SIZE}"[:SIZE] for head in HEADS for run in RUNS)
    assert [line[:12] for line in lines if not is_linear(line)] == []
