"""Logs as launchers, loggers and terminals write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.advise.diagnose import diagnose, show

_BAR = " 12%|#2        | 120/1000 [00:10<01:20, 11.0it/s]\r"

wrapped: dict[str, Callable[[str], bytes]] = {
    "torchrun": lambda text: f"[rank3]: {text}\n".encode(),
    "tee": lambda text: f"[default0]:{text}\n".encode(),
    "time": lambda text: f"2026-11-22 01:02:03,456 - ERROR - {text}\n".encode(),
    "bracketed time": lambda text: f"[2026-11-22 01:02:03,456] [ERROR] {text}\n".encode(),
    "iso time": lambda text: f"2026-11-22T01:02:03.456789Z {text}\n".encode(),
    "srun": lambda text: f"0: {text}\n".encode(),
    "mpirun": lambda text: f"[1,2]<stderr>:{text}\n".encode(),
    "ray": lambda text: f"(RayWorker pid=4711, ip=10.0.0.1) {text}\n".encode(),
    "srun and rank": lambda text: f"12: [rank12]: {text}\n".encode(),
    "json": lambda text: (json.dumps({"rank": 1, "message": text}) + "\n").encode(),
    "docker": lambda text: (json.dumps({"log": text + "\n", "stream": "stderr"}) + "\n").encode(),
    "utf-16": lambda text: f"begin\n{text}\n".encode("utf-16"),
    "utf-16-be": lambda text: f"begin of the log\n{text}\n".encode("utf-16-be"),
    "windows": lambda text: f"begin\r\n{text}\r\n".encode("utf-8-sig"),
    "bars": lambda text: f"{_BAR * 5}\n{text}\n{_BAR * 5}".encode(),
    "quoted": lambda text: f"> > {text}\n".encode(),
    "list": lambda text: f"- `{text}`\n".encode(),
    "notebook": lambda text: f' {{\n  "evalue": {json.dumps(text)},\n }}\n'.encode(),
    "spelled colours": lambda text: (
        r"\u001b[31m" + re.sub(r"(\d+(?:\.\d+)?)", r"\\u001b[1;31m\1\\u001b[0m", text) + "\n"
    ).encode(),
    "colours": lambda text: (
        "\x1b[31m" + re.sub(r"(\d+(?:\.\d+)?)", "\x1b[1;31m\\1\x1b[0m", text) + "\x1b[0m\n"
    ).encode(),
}  # fmt: skip
"""One message in a log, by what writes it."""

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {device} has a"
    " total capacity of 79.15 GiB of which {free} is free. Including non-PyTorch memory, this"
    " process has {process} memory in use. Of the allocated memory {allocated} is allocated by"
    " PyTorch, and {idle} is reserved by PyTorch but unallocated.\n"
)


def oom(**said: str) -> str:
    """Torch's message, with the sizes that are `said`."""
    usual = {
        "asked": "2.00 GiB", "device": "0", "free": "1.15 GiB", "process": "77.90 GiB",
        "allocated": "76.50 GiB", "idle": "200.00 MiB",
    }  # fmt: skip
    return FULL.format(**usual | said)


_ELASTIC = "1105 10:33:12.345000 40200 torch/distributed/elastic/multiprocessing/api.py"
_TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-11-05_10:33:12
  host      : node1
  rank      : {rank} (local_rank: {local_rank})
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
============================================================
"""


def torchrun(ranks: int, local_rank: int, *, node: int = 0) -> str:
    """A log of torchrun on one node, where a rank of `ranks` ran out of memory: processes 40280
    and up."""
    rank, pids = ranks * node + local_rank, range(40280, 40280 + ranks)
    others = [pid for pid in pids if pid != pids[local_rank]]
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/w/train.py", line 40, in <module>\n[rank{rank}]:     main()\n'
        f"[rank{rank}]: {oom(device=str(local_rank))}"
        + "".join(f"W{_ELASTIC}:908] Sending process {p} closing signal SIGTERM\n" for p in others)
        + f"E{_ELASTIC}:882] failed (exitcode: 1) local_rank: {local_rank}"
        f" (pid: {pids[local_rank]}) of binary: /usr/bin/python\n"
        + _TABLE.format(rank=rank, local_rank=local_rank, pid=pids[local_rank])
    )  # fmt: skip


def told(tmp_path: Path, *logs: str) -> dict[str, Any]:
    """The diagnosis of `logs`, as JSON."""
    paths = []
    for number, text in enumerate(logs):
        paths.append(str(tmp_path / f"rank{number}.log"))
        Path(paths[-1]).write_text(text)
    report = diagnose(paths)
    assert show.lines(report)
    return json.loads(json.dumps(show.body(report)))  # type: ignore[no-any-return]
