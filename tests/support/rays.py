"""A real Ray: its head is on this machine, its nodes are hosts of `tests.support.namespaces`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import PATIENCE_S, Network, free_port

START = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
SMALL = ["--disable-usage-stats", "--object-store-memory=80000000",
         "--dashboard-agent-listen-port=0"]  # fmt: skip


@contextlib.contextmanager
def ray_cluster(net: Network) -> Iterator[dict[str, str]]:
    """Variables for those who use a cluster. Each host has 2 CPUs and 2 GPUs, this machine none.

    The test is skipped where there is no Ray.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("no Ray: pip install ray")
    address = f"{net.address}:{free_port()}"
    # The head listens on all addresses of this machine.
    told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = os.environ | told
    head = [*START, *SMALL, "--head", f"--node-ip-address={net.address}", "--num-cpus=0",
            f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    # A socket's path is short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="at", dir="/tmp") as folder:
        log = Path(folder) / "start.log"

        def start(command: list[str]) -> None:
            with log.open("ab") as stream:
                started.append(
                    subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
                )

        try:
            start([*head, f"--temp-dir={folder}"])
            _wait_for(1, address, environment, log)
            for host in net.hosts:
                node = [*START, *SMALL, f"--address={address}", "--num-cpus=2", "--num-gpus=2",
                        f"--node-ip-address={host.address}"]  # fmt: skip
                start(host.command(*node, f"--temp-dir={folder}/{host.name}"))
            _wait_for(1 + len(net.hosts), address, environment, log)
            yield told | {"RAY_ADDRESS": address}
        finally:
            for each in reversed(started):
                each.terminate()
            for each in started:
                each.wait()


def _wait_for(nodes: int, address: str, environment: dict[str, str], log: Path) -> None:
    """Until as many nodes are there."""
    code = (
        "import sys, time, ray\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')\n"
        "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[2]):\n"
        "    time.sleep(0.05)\n"
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        asked = subprocess.run(
            [sys.executable, "-c", code, address, str(nodes)], check=False, capture_output=True,
            text=True, timeout=PATIENCE_S, env=environment,
        )  # fmt: skip
        if asked.returncode == 0:
            return
        assert time.monotonic() < deadline, asked.stderr + log.read_text()
