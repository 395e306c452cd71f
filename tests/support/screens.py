"""Consoles and terminals, and a short study that is told on them.

    python -m tests.support.screens few

tells it on this terminal, and waits for a line from it before its last trial ends.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console

from autotune.result.best import Best
from autotune.show.report import Reporter
from autotune.show.report.reporters import reporter_for
from autotune.space.axes import AXES
from autotune.space.candidate import Candidate
from autotune.space.outcome import Record, Verdict
from autotune.space.space import Space
from autotune.wire.stopping import Phase
from tests.support import exported
from tests.support.programs import ROOT
from tests.support.records import record, space, with_offload

A = Candidate(depth=4, seq_len=128, micro_batch=8)
B = Candidate(depth=4, seq_len=128, micro_batch=4)
C = Candidate(depth=2, seq_len=64, micro_batch=8, checkpointing="full")
SPACE = space()
FOLDER = Path("results/a-study")
LONG_REASON = "RuntimeError: a message that goes on and on, " + "and on, " * 30 + "and ends"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Screen:
    """A stream with what a console needs to know of one."""

    def __init__(self, width: int = 100, *, terminal: bool = False, encoding: str = "utf-8"):
        self._bytes = io.BytesIO()
        stream = io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True)
        self._encoding = encoding
        self.console = Console(
            file=stream, width=width, force_terminal=terminal, legacy_windows=False,
            color_system=None, highlight=False, markup=False, emoji=False,
        )  # fmt: skip

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode(self._encoding)


def many_axes() -> Space:
    """Of long values on many axes; a script's own among them."""
    plain = space()
    longest: dict[str, Any] = {
        "zero_stage": 3, "offload": "optimizer", "checkpointing": "1/2",
        "attention": "flash_attention_2", "loss": "chunked", "data_workers": "16",
        "allocator": "max_split_size_mb:128+garbage_collection_threshold:0.8",
        "own": "norm=rms;ckpt=--gradient-checkpointing",
    }  # fmt: skip
    axes = plain.axes | {name: (AXES[name].plain, value) for name, value in longest.items()}
    candidates = (*plain.candidates, *(replace(c, **longest) for c in plain.candidates))
    return replace(plain, axes=axes, candidates=candidates)


SPACES = {
    "few": SPACE,
    "wide": space(depth=(12, 24), micro_batch=(1, 128)),
    "offload": with_offload(SPACE),
    "many": many_axes(),
}


def best(*records: Record, among: Space = SPACE, **provenance: str) -> Best:
    return exported.best(records, among, provenance=provenance)


def study(
    reporter: Reporter,
    clock: Clock,
    among: Space = SPACE,
    pause: Callable[[], object] = lambda: None,
) -> None:
    """A short study with one of everything; before its last trial ends, `pause` is called."""
    longest = max(among.candidates, key=lambda c: (len(c.key), c.micro_batch, c.depth, c.seq_len))
    smaller = replace(longest, micro_batch=among.axes["micro_batch"][-2])
    large, small = among.candidates[-1], among.candidates[1]
    records = [
        record(longest, number=1, tokens_per_s=12345),
        record(large, Verdict.OOM, number=2, reason="allocating 512 MiB failed"),
        record(small, Verdict.CRASHED, number=3, reason=LONG_REASON),
        record(smaller, number=4, tokens_per_s=12340, peak_mib=1500),
        record(longest, number=5, purpose="final", tokens_per_s=12300),
        record(smaller, number=6, purpose="final", tokens_per_s=12310, peak_mib=1500),
    ]
    reporter.started(among, 600.0, FOLDER)
    for one in records:
        reporter.probing(one.purpose, one.candidate, 420.0)
        reporter.phase(Phase.TIMED, 3)
        clock.now_s += 20
        if one is records[-1]:
            pause()
        reporter.told(one, records[0])
    reporter.note("search ended: a third of the budget is spent")
    reporter.finished(best(*records, among=among), FOLDER / "best.json")
    reporter.close()


class Terminal:
    """A pseudo-terminal on which the study is told, by a process of its own, and what it shows."""

    def __init__(self, columns: int, among: str = "few", **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = pyte.Screen(columns, 120)
        self._stream = pyte.ByteStream(self.screen)
        self.text = b""
        self.resize(columns)
        unset = ("NO_COLOR", "COLUMNS", "LINES", "LC_ALL", "PYTHONIOENCODING")
        known = {name: value for name, value in os.environ.items() if name not in unset}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.screens", among],
            cwd=ROOT, env=known | {"TERM": "xterm-256color"} | environment,
            stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", self.screen.lines, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
        self.screen.resize(columns=columns)

    def wait_for(self, words: str) -> str:
        """What the terminal shows when `words` are on it."""
        while words not in self.shown:
            assert self._read(), self.shown
        return self.shown

    def redrawn(self, words: str) -> None:
        """Wait until all is drawn anew, with `words`. What is on its way may be an older drawing,
        so a second one counts."""
        for _ in range(2):
            self.screen.reset()
            self.wait_for(words)

    def end(self) -> str:
        """Let the study go on to its end; what the terminal shows then."""
        os.write(self._ours, b"\n")
        while self._read():
            pass
        os.close(self._ours)
        assert self._process.wait() == 0, self.shown
        return self.shown

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def _read(self) -> bool:
        """Whether there was more."""
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # nobody is there to write it
            return False
        self.text += part
        self._stream.feed(part)
        return bool(part)


if __name__ == "__main__":
    clock = Clock()
    study(reporter_for(sys.stdout, clock), clock, SPACES[sys.argv[1]], sys.stdin.readline)
