"""Logs as streams: what is found in them, whatever their size and encoding."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.advise.diagnose import diagnose
from autotune.advise.diagnose.reading import AHEAD, BLOCK, Scanner, pieces
from autotune.commands.app import main
from autotune.commands.exits import ExitCode
from tests.support.programs import ROOT

ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.23 GiB. GPU 0 has a total"
    " capacity of 19.58 GiB of which 1.06 GiB is free.\n"
)
QUIET = "{'loss': 2.1234, 'learning_rate': 1.0e-04, 'epoch': 0.52}\n"


def numbers(data: bytes, size: int) -> list[int]:
    """Lines with a hit, where `data` comes in pieces of `size`."""
    scanner, found = Scanner(), []
    for at in range(0, len(data), size):
        found += [hit.number for hit in scanner.feed(data[at : at + size])]
    return found + [hit.number for hit in scanner.finish()]


@pytest.mark.parametrize("size", [7, 1000, AHEAD, 3 * AHEAD + 1, BLOCK])
def test_a_line_is_found_once_however_the_stream_is_cut(size: int) -> None:
    lines = [QUIET] * 3000
    for at in (0, 500, 1700, 2999):
        lines[at] = ERROR
    data = "".join(lines).encode()
    assert numbers(data[: 60 * size] if size < 100 else data, size) == (
        [1] if size < 100 else [1, 501, 1701, 3000]
    )


def test_a_line_without_an_end_is_searched_too() -> None:
    data = b"x" * (3 * BLOCK) + ERROR.encode() + b"x" * (2 * BLOCK)
    scanner, lines = Scanner(), []
    for at in range(0, len(data), BLOCK):
        lines += [hit.line for hit in scanner.feed(data[at : at + BLOCK])]
    lines += [hit.line for hit in scanner.finish()]
    assert sum("Tried to allocate 1.23 GiB" in line for line in lines) == 1
    assert max(map(len, lines)) < 2 * AHEAD


def test_a_progress_bar_ends_lines() -> None:
    data = (" 10%|# | 1/10 [00:01<00:09]\r" * 50 + ERROR).encode()
    [hit] = _finished(data)
    assert hit.line.startswith("torch.OutOfMemoryError")


def _finished(data: bytes) -> list[Any]:
    scanner = Scanner()
    assert not list(scanner.feed(data))
    return list(scanner.finish())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_an_encoding_is_recognised(encoding: str) -> None:
    text = b"".join(pieces(io.BytesIO(("Übung\n" + ERROR).encode(encoding)), "log"))
    assert ERROR.encode() in text


def test_a_log_with_a_hole_is_text(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for hole in (400, 9000):  # two jobs wrote one file
        log.write_bytes(QUIET.encode() * 9 + b"\0" * hole + ERROR.encode())
        event = diagnose([str(log)]).event
        assert event is not None
        assert event.amounts.asked


def test_what_is_neither_is_read_as_far_as_it_can_be() -> None:
    data = "Größe ".encode("latin-1") + ERROR.encode()
    assert numbers(b"".join(pieces(io.BytesIO(data), "log")), BLOCK) == [1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\x7fELF\x02\x01\x01", "not a log but a program"),
        (gzip.compress(b"log", mtime=0), "zcat"),
        (bytes(range(256)) * 8, "is binary"),
        (b"\0\1\2\3" * 100, "is binary"),
        (b"\0" * 5000, "is binary"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(
    data: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(data)
    assert main(["diagnose", str(tmp_path / "log")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_folder_and_what_is_missing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path)]) == ExitCode.USAGE
    assert "is a folder" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "none")]) == ExitCode.USAGE
    assert "No such file" in capsys.readouterr().err
    assert main(["diagnose", "a\0b"]) == ExitCode.USAGE


def test_the_folder_of_a_study_stands_for_its_logs(tmp_path: Path) -> None:
    logs = tmp_path / "study" / "logs"
    logs.mkdir(parents=True)
    (logs / "launch000.log").write_text("")
    (logs / "launch001.log").write_text(ERROR)
    (logs / "launch002.log").write_text("done\n")
    report = diagnose([str(tmp_path / "study")])
    assert report.event is not None
    assert report.event.log == str(logs / "launch001.log")
    assert report.logs == (str(logs / "launch001.log"), str(logs / "launch002.log"))


@pytest.mark.parametrize(
    ("name", "says"), [("run.err", "/*.err"), ("a/b.log", "/*/*.log"), ("a.py", "without logs")]
)
def test_a_folder_is_refused_with_what_matches_in_it(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("log")
    assert main(["diagnose", str(tmp_path)]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_a_log_without_errors_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(QUIET * 10)
    assert main(["diagnose", str(tmp_path / "log")]) == ExitCode.FOUND
    assert capsys.readouterr().out.startswith("No error found")


PROGRAM = """
import resource, sys
sys.argv = ["autotune", "diagnose", "-", "--json"]
from autotune.__main__ import main
limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + 200 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log() -> None:
    running = _start("-c", PROGRAM)
    assert running.stdin is not None
    piece = (QUIET * 20_000).encode()
    for _ in range(240):
        running.stdin.write(piece)
    out, err = running.communicate(ERROR.encode())
    assert running.returncode == 0, err
    report = json.loads(out)
    assert report["bytes_read"] > 270_000_000
    assert report["event"]["asked_bytes"] == round(1.23 * 2**30)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def test_ctrl_c_on_a_pipe_that_never_ends_gives_what_was_found() -> None:
    running = _start("-u", "-m", "autotune", "diagnose", "-")
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write((QUIET + ERROR + QUIET * 2_000).encode() * 4)
    running.stdin.flush()  # more than a pipe holds: by now it is reading
    running.send_signal(signal.SIGINT)
    out, err = running.stdout.read(), running.stderr
    running.stdin.close()
    assert running.wait() == 0, err and err.read()
    assert out.startswith(b"GPU 0 ran out of memory: 1.23 GiB asked")
    assert b"Stopped after" in out
