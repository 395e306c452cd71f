"""Logs as launchers, loggers and terminals write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

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
