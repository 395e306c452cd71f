"""Real sshds on hosts of `tests.support.namespaces`, and an ssh that may log in there."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import PATIENCE_S, Network

PORT = 2222
SERVER = """\
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
StrictModes no
PermitRootLogin yes
PidFile none
"""
CLIENT = """\
Host {name}
  HostName {address}
  HostKeyAlias cluster
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
"""


@contextlib.contextmanager
def sshds(net: Network, folder: Path) -> Iterator[str]:
    """The command of an ssh that knows `net`'s hosts by their names.

    The test is skipped where there is no sshd.
    """
    server = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(server).exists() or shutil.which("ssh") is None:
        pytest.skip("no sshd: apt-get install openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                       check=True)  # fmt: skip
    (folder / "server").write_text(SERVER.format(port=PORT, folder=folder))
    (folder / "known_hosts").write_text("cluster " + (folder / "host.pub").read_text())
    (folder / "client").write_text(
        "".join(
            CLIENT.format(name=host.name, address=host.address, port=PORT, folder=folder,
                          user=os.environ.get("USER", "root"))
            for host in net.hosts
        )
    )  # fmt: skip
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    started = []
    try:
        for host in net.hosts:
            command = host.command(server, "-D", "-f", str(folder / "server"),
                                   "-E", str(folder / f"{host.name}.log"))  # fmt: skip
            started.append(subprocess.Popen(command))
        for host in net.hosts:
            _wait_until_it_listens(host.address)
        yield f"ssh -F {folder / 'client'}"
    finally:
        for daemon in started:
            daemon.terminate()
        for daemon in started:
            daemon.wait()


def _wait_until_it_listens(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((address, PORT), timeout=PATIENCE_S).close()
        except OSError:
            assert time.monotonic() < deadline, address
            time.sleep(0.02)
        else:
            return
