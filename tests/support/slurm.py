"""A real Slurm on hosts of `tests.support.namespaces`: its controller is on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import PATIENCE_S, Network, free_port, network

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""Debian has daemons where not everybody looks."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo", "scancel")
NODE = "CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPort=17001
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=10
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster in which nothing runs yet."""

    network: Network
    environment: dict[str, str]
    """For those who use it."""

    def run(self, *command: str) -> str:
        """What one of its programs prints."""
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    @contextlib.contextmanager
    def job(self, *flags: str) -> Iterator[dict[str, str]]:
        """Variables of a job, as its own programs have them; it ends afterwards."""
        held = subprocess.Popen(
            ["salloc", "--quiet", *flags, "sh", "-c", "env; echo; cat"], env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert held.stdin is not None
        assert held.stdout is not None
        try:
            lines = iter(held.stdout.readline, "\n")
            told = dict(line.rstrip("\n").split("=", 1) for line in lines if "=" in line)
            yield {name: value for name, value in told.items() if name.startswith("SLURM_")}
        finally:
            held.stdin.close()
            held.wait()
            held.stdout.close()


@contextlib.contextmanager
def slurm(folder: Path, count: int = 3) -> Iterator[Slurm]:
    """A Slurm of `count` idle nodes of 2 CPUs and 2 GPUs, called n1, n2 and so on.

    The test is skipped where there is none.
    """
    for program in PROGRAMS:
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"no {program}: apt-get install slurmctld slurmd slurm-client munge")
    with network(count) as net:
        _configure(folder, net)
        made = Slurm(net, os.environ | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")})
        started = []
        try:
            for command in _daemons(folder, net):
                with (folder / "daemons.log").open("ab") as log:
                    started.append(
                        subprocess.Popen(command, env=made.environment, stdout=log, stderr=log)
                    )
            _wait_until_idle(made)
            yield made
        finally:
            for daemon in reversed(started):
                daemon.terminate()
            for daemon in started:
                daemon.wait()


def _configure(folder: Path, net: Network) -> None:
    nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} {NODE}" for host in net.hosts)
    named = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            host=named, address=net.address, port=free_port(), folder=folder, nodes=nodes
        )
    )
    # Slurm counts devices, and looks at none.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")
    for name in ("state", *(f"spool.{host.name}" for host in net.hosts)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)


def _daemons(folder: Path, net: Network) -> Iterator[list[str]]:
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid",
             "log-file": "munged.log", "seed-file": "munge.seed"}  # fmt: skip
    yield ["munged", "--foreground", "--force",
           *(f"--{flag}={folder / name}" for flag, name in files.items())]  # fmt: skip
    yield ["slurmctld", "-D", "-c"]
    for host in net.hosts:
        yield host.command("slurmd", "-D")


def _wait_until_idle(made: Slurm) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        shown = subprocess.run(
            ["sinfo", "--noheader", "--format=%D %t"], env=made.environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        if shown.stdout.strip() == f"{len(made.network.hosts)} idle":
            return
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)
