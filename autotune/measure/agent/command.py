"""The agent's command line. A launcher starts it on each node; it dials the study.

No flag begins like one of torchrun, which may be the launcher. The key comes from a file or from
the first line of stdin. Everybody on the machine could read an argument.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import NoReturn

from autotune.errors import UsageError, refused
from autotune.measure.agent.agent import LOST, Agent
from autotune.measure.agent.scratch import Scratch
from autotune.measure.runner.channel import Peer
from autotune.wire import stream

USAGE_ERROR = 2
SILENT_S = 10.0
"""The guard kills an agent that does not run for so many seconds."""


def main(argv: list[str] | None = None) -> int:
    """Serve the study until it ends; the exit code."""
    asked = _parser().parse_args(argv)
    try:
        host, port = _address(asked.driver)
        key, certificate = _credentials(_key_line(asked.key_file))
    except UsageError as error:
        return _complain(str(error), USAGE_ERROR)
    name = asked.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, _leave)
    try:
        dialled = stream.dial(host, port, key, certificate)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "does the study still run?"
        if isinstance(error, TimeoutError):
            hint = "is there a firewall between, or another --interface of the study's?"
        return _complain(f"--driver {asked.driver}: {why}; {hint}", LOST)
    with closing(Scratch("autotune-agent-", SILENT_S)) as scratch:  # it forks: before threads
        why = Agent(Peer(dialled), name, scratch).serve()
    return _complain(why, LOST) if why else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autotune.agent", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--driver", required=True, metavar="HOST:PORT", help="Of the study.")
    parser.add_argument(
        "--key-file", required=True, metavar="FILE", help="Made by the study; - is stdin."
    )
    parser.add_argument("--node", metavar="NAME", help="Name of this machine in the study.")
    return parser


def _address(driver: str) -> tuple[str, int]:
    host, _, port = driver.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--driver {driver}: not HOST:PORT; write e.g. --driver 10.0.0.1:40000")
    return host.strip("[]"), int(port)


def _credentials(line: str) -> tuple[bytes, str]:
    """The key and the certificate of a study, as `Channel.credentials` writes them."""
    try:
        found = json.loads(line)
        return bytes.fromhex(found["key"]), str(found["certificate"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError("--key-file: is no key of a study; take the file it made") from error


def _key_line(path: str) -> str:
    if path == "-":
        return sys.stdin.readline()
    with refused(f"--key-file {path}"):
        file = Path(path)
        if file.stat().st_mode & 0o077:
            raise UsageError(f"--key-file {path}: other users can read it; run chmod 600 {path}")
        return file.read_text()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _complain(text: str, code: int) -> int:
    print(f"autotune.agent: {text}", file=sys.stderr, flush=True)
    return code
