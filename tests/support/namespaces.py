"""Hosts of a cluster on one machine: network namespaces on a bridge, each with a name of its own.

They share files, processes' numbers and memory with this machine, which is on the bridge as well.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 120.0
_NETS = range(256)
_NAMED = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


@dataclass(frozen=True)
class Host:
    """One of them."""

    name: str
    """Its name for its processes."""
    address: str
    _space: str
    """Of its namespace, and of its port on the bridge."""
    _names: Path
    """Its own /etc/hosts."""

    def command(self, *command: str) -> list[str]:
        """A command that runs `command` on this host, as one process."""
        # `ip netns exec` would hide /sys from it.
        spaces = ["unshare", "--uts", "--mount", "--propagation=slave"]
        return ["nsenter", f"--net=/run/netns/{self._space}", *spaces,
                "sh", "-c", _NAMED, self.name, str(self._names), *command]  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Numbers and command lines of all that runs here."""
        pids = map(int, _output("ip", "netns", "pids", self._space).split())
        found = {pid: command_line(pid) for pid in pids}
        return {pid: line for pid, line in found.items() if line}

    def cut(self) -> None:
        """Silently drop all traffic from and to this host from now on."""
        _ip(f"link set {self._space} down")

    def heal(self) -> None:
        """The end of a `cut`."""
        _ip(f"link set {self._space} up")


@dataclass(frozen=True)
class Network:
    """This machine and some hosts."""

    address: str
    """Of this machine, as hosts reach it."""
    hosts: tuple[Host, ...]


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """`count` hosts called n1, n2 and so on; nothing of them is left afterwards.

    The test is skipped where they cannot be made.
    """
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("no ip: apt-get install iproute2")
    net = _add_bridge()
    names = Path(tempfile.mkdtemp()) / "hosts"
    hosts = [
        Host(f"n{n}", f"10.77.{net}.{10 + n}", f"at{net}n{n}", names) for n in range(1, count + 1)
    ]
    try:
        names.write_text(
            f"127.0.0.1 localhost\n10.77.{net}.1 {socket.gethostname()}\n"
            + "".join(f"{host.address} {host.name}\n" for host in hosts)
        )
        for host in hosts:
            _add(host, f"at{net}")
        yield Network(f"10.77.{net}.1", tuple(hosts))
    finally:
        for host in hosts:
            _remove(host)
        _ip(f"link del at{net}")
        shutil.rmtree(names.parent)


def command_line(pid: int) -> str:
    """Of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def free_port() -> int:
    """A free port of this machine. It stays free until a program listens there: Linux gives ports
    from 32768 on to connections."""
    for port in random.SystemRandom().sample(range(20000, 32768), 100):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("", port))
            return port
    raise OSError("no port is free")


def _add_bridge() -> int:
    """Makes the bridge of a net that nobody uses, 10.77.N.0/24. Test runs may do so at once."""
    refused = ""
    for net in _NETS:
        routes = _output("ip", "route", "show", "to", "match", f"10.77.{net}.1")
        if any(not route.startswith("default") for route in routes.splitlines()):
            continue
        made = subprocess.run(
            ["ip", "link", "add", f"at{net}", "type", "bridge"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if made.returncode == 0:
            _ip(f"address add 10.77.{net}.1/24 dev at{net}", f"link set at{net} up")
            return net
        refused = made.stderr.strip()
        if "exists" not in refused:
            break
    pytest.skip(f"no network namespaces here: {refused}")


def _add(host: Host, bridge: str) -> None:
    space = host._space
    _ip(
        f"netns add {space}",
        f"link add {space} type veth peer name eth0 netns {space}",
        f"link set {space} master {bridge} up",
    )
    _ip(f"address add {host.address}/24 dev eth0", "link set eth0 up", "link set lo up",
        within=space)  # fmt: skip


def _remove(host: Host) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # where it was never made
        deadline = time.monotonic() + PATIENCE_S
        while left := host.processes():
            assert time.monotonic() < deadline, left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        _ip(f"link del {host._space}")
        _ip(f"netns del {host._space}")


def _ip(*lines: str, within: str | None = None) -> None:
    """Carries `lines` out, in order, in a namespace."""
    space = [] if within is None else ["-n", within]
    subprocess.run(
        ["ip", *space, "-batch", "-"], input="\n".join(lines), check=True, capture_output=True,
        text=True,
    )  # fmt: skip


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
