"""ssh starts an agent on each host of a file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from autotune.errors import UsageError
from autotune.measure.launch import agent
from autotune.measure.launch.client import Client, with_line
from autotune.measure.launch.launcher import Launcher, LaunchRequest

TALK_S = 10.0
PROGRAM = "AUTOTUNE_SSH"
"""A variable that may name another program than ssh, with arguments."""
_LINE = re.compile(r"(?P<host>\S+)\s+slots=(?P<slots>\d+)(\s.*)?")
_HELD = (
    "cd {folder} && exec 3<&0 && read -r key && {{"
    " printf '%s\\n' \"$key\" | {agent} 3<&- & agent=$!;"
    " {{ cat; kill $agent; }} <&3 >/dev/null 2>&1 & watch=$!;"
    " wait $agent; code=$?; kill $watch 2>/dev/null; exit $code; }}"
)
"""A shell command: an agent that reads the first line of stdin, and is killed at the end of stdin.
It is one line, since a csh may run it."""


def parse_hostfile(path: Path) -> dict[str, int]:
    """Slots of each host of a file: lines of `host slots=N`, as DeepSpeed reads them. Raises
    UsageError if the file cannot be read, or has another format."""
    launch = f"--launch ssh:{path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no text"
        raise UsageError(
            f"{launch}: {why}; write a file of lines such as `node1 slots=8`"
        ) from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        found = _LINE.fullmatch(said)
        if found is None or found["host"].startswith("-"):
            raise UsageError(
                f"{launch}: line {number}, {said!a:.60}: not a host with slots; write `node1"
                " slots=8`"
            )
        host, count = found["host"], int(found["slots"])
        if host in slots:
            raise UsageError(f"{launch}: line {number}: {host} stands there twice; write it once")
        if count < 1:
            raise UsageError(
                f"{launch}: line {number}: {host} has no slots; write `{host} slots=1`, or"
                " leave it out"
            )
        slots[host] = count
    if not slots:
        raise UsageError(f"{launch}: has no hosts; write lines such as `node1 slots=8`")
    return slots


def make(asked: LaunchRequest) -> Ssh:
    """Raises `UsageError` for a bad file, for more nodes than it has, and without ssh."""
    slots = parse_hostfile(Path(asked.argument))
    if asked.nodes is not None and asked.nodes > len(slots):
        raise UsageError(
            f"--nodes {asked.nodes}: {asked.argument} has {len(slots)}; use --nodes {len(slots)}"
        )
    program = shlex.split(os.environ.get(PROGRAM, "")) or ["ssh"]
    if shutil.which(program[0]) is None:
        raise UsageError(
            f"--launch ssh:{asked.argument}: {program[0]} not found; install openssh-client, or"
            f" name another program in {PROGRAM}"
        )
    return Ssh(program, dict(list(slots.items())[: asked.nodes]), asked)


class Ssh(Launcher):
    """For the hosts of a file. ssh's own configuration says how to reach them."""

    name = "ssh"

    def __init__(self, program: list[str], slots: Mapping[str, int], asked: LaunchRequest) -> None:
        super().__init__(len(slots), asked.interface)
        self._program = program
        self.slots = slots
        self.names = tuple(slots)

    def _hosts(self) -> Iterable[str]:
        return map(self._name, self.slots)

    def start(self, driver: str, key: str, key_file: Path, logs: Path) -> list[str]:
        for host in self.slots:
            log = logs / f"ssh-{host.replace('/', '_')}.log"
            command = [*self._program, "-T", "-o", "BatchMode=yes", host, _remote(driver, host)]
            self._clients[host] = Client(command, key, log)
        return []

    def poll(self) -> list[str]:
        return [
            f"{host}: ssh left with {with_line(how, client.last_line())}"
            for host, client in self._clients.items()
            if (how := client.left())
        ]

    def _name(self, host: str) -> str:
        """The name that ssh's configuration gives to `host`."""
        shown = ""
        with suppress(subprocess.TimeoutExpired):
            shown = subprocess.run(
                [*self._program, "-G", host], check=False, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=TALK_S,
            ).stdout  # fmt: skip
        found = re.search(r"^hostname (\S+)$", shown, re.MULTILINE)
        return found[1] if found else host.rpartition("@")[2]


def _remote(driver: str, node: str) -> str:
    """The command for the shell of a host."""
    variables = [f"{name}={value}" for name, value in agent.forwarded().items()]
    started = shlex.join(["env", *variables, *agent.command(driver, node=node)])
    held = _HELD.format(folder=shlex.quote(str(Path.cwd())), agent=started)
    return f"exec sh -c {shlex.quote(held)}"
