"""A study in a notebook: a real kernel, asked as a notebook asks it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.support.programs import MEASURED_AGAIN, ROOT, ranks_of

pytestmark = pytest.mark.slow
STUDY = (
    "device='cpu', depth=1, seq_len=(32,), micro_batch=[1, 2], gpt='vocab_size=256',"
    " checkpointing='none', finals=1, learn_from='none'"
)
PATIENCE_S = 120.0


class Notebook:
    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)
        self.process = psutil.Process(int(self.run("import os; print(os.getpid())")))

    def run(self, code: str, seen: Callable[[str], None] = lambda text: None) -> str:
        """What a cell printed, with the name of the error that it ended with in the last line."""
        asked = self.client.execute(code)
        printed = ""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except Empty:
                seen(printed)
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += re.sub(r"\x1b\[\d*m", "", content["text"])
                seen(printed)
            elif kind == "error":
                printed += f"\n{content['ename']}"
            elif kind == "display_data":
                printed += f"\nDISPLAYED {content['data']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return printed
        raise TimeoutError(printed)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    one = Notebook(tmp_path)
    try:
        one.run(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import autotune")
        yield one
    finally:
        one.close()


def test_a_cell_shows_one_bar_and_the_result(notebook: Notebook) -> None:
    printed = notebook.run(f"best = autotune.tune(budget='60s', trials=2, out='study', {STUDY})")
    assert "DISPLAYED" not in printed
    bars = [part for part in printed.split("\r") if "trials" in part]
    assert len(bars) >= 2
    assert {len(part.rpartition("\n")[2]) for part in bars[:-1]} == {80}
    assert "0:" in bars[0]
    assert "tok/s" in bars[-1]
    assert "best.json" in printed
    said = notebook.run("print(best.config.micro_batch in (1, 2), best.unconfirmed)")
    assert said in {f"True {why}\n" for why in MEASURED_AGAIN}
    assert notebook.run("print('torch' in sys.modules)") == "False\n"
    assert not notebook.process.children(recursive=True)


def test_an_interrupt_returns_the_best_so_far_and_the_kernel_goes_on(notebook: Notebook) -> None:
    interrupted = False

    def interrupt(printed: str) -> None:
        nonlocal interrupted
        if not interrupted and "best" in printed.rpartition("\r")[0].rpartition("\r")[2]:
            notebook.manager.interrupt_kernel()
            interrupted = True

    code = f"best = autotune.tune(budget='100s', out='study', {STUDY})"
    printed = notebook.run(code, interrupt)
    assert interrupted
    assert "best.json" in printed
    assert notebook.run("print(best.confirmed)") == "False\n"
    assert not notebook.process.children(recursive=True)


def test_a_second_interrupt_is_one_of_python(notebook: Notebook) -> None:
    def interrupt(printed: str) -> None:
        for rank in (ranks := ranks_of(notebook.process.pid)):
            rank.suspend()  # so that the first one takes a while
        if ranks:
            notebook.manager.interrupt_kernel()

    notebook.run("kept = 1")
    printed = notebook.run(f"autotune.tune(budget='100s', out='study', {STUDY})", interrupt)
    assert printed.endswith("KeyboardInterrupt")
    assert notebook.run("print(kept)") == "1\n"
    assert not notebook.process.children(recursive=True)
